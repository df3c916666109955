#include "attention/checks.h"

#include <cmath>

namespace kernelpair {
namespace {

// Branch-free, so that a long row is checked several entries at a time.
template <class Index>
bool all_below(const Index* entries, int64_t count, int64_t stride, uint64_t limit) {
  bool good = true;
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i)
      good &= static_cast<uint64_t>(static_cast<int64_t>(entries[i])) < limit;
  else
    for (int64_t i = 0; i < count; ++i)
      good &= static_cast<uint64_t>(static_cast<int64_t>(entries[i * stride])) < limit;
  return good;
}

float value_at(const View& view, int64_t i) {
  const int64_t offset = i * view.strides[0];
  if (view.dtype == Dtype::f32) return static_cast<const float*>(view.data)[offset];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[offset];
  if (view.dtype == Dtype::bf16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &wide, sizeof value);
    return value;
  }
  const bool special = (bits & 0x7c00) == 0x7c00;  // only infinities and NaN of a float16 matter here
  if (!special) return 0;
  return bits & 0x3ff ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
}

}  // namespace

void check_attention(const AttentionSizes& sizes, double sm_scale, double logit_cap, const View& sinks,
                     const char* scale_name, const char* cap_name) {
  check_positive(scale_name, sm_scale);
  if (logit_cap != 0) {  // 0: no cap
    check_positive(cap_name, logit_cap);
    KP_CHECK_VALUE(std::isfinite(static_cast<float>(sm_scale) / static_cast<float>(logit_cap)), cap_name,
                   " = ", logit_cap, " is too small: ", scale_name, " divided by it is infinite in float32");
  }
  KP_CHECK_VALUE(sizes.kv_heads >= 1 && sizes.heads % sizes.kv_heads == 0, "q has ", sizes.heads,
                 " heads, which is not a multiple of the cache's ", sizes.kv_heads, " heads");
  KP_CHECK_VALUE(sizes.D >= 1 && sizes.Dv >= 1,
                 "q and v_cache must have positive head sizes, got D = ", sizes.D, ", Dv = ", sizes.Dv);
  if (!sinks.defined) return;
  check_parameter_vector({"sinks", sinks}, sizes.heads, sizes.dtype);
  for (int64_t h = 0; h < sizes.heads; ++h) {
    const float sink = value_at(sinks, h);
    KP_CHECK_VALUE(!std::isnan(sink) && sink != INFINITY, "sinks[", h, "] = ", sink,
                   " must be finite or -inf");
  }
}

void check_table_entries(Arg table, int64_t row, int64_t first, int64_t count, int64_t limit,
                         int64_t batch_row) {
  const View& view = table.view;
  const int64_t start = row * view.strides[0] + first * view.strides[1];
  const bool good =
      view.dtype == Dtype::i64
          ? all_below(static_cast<const int64_t*>(view.data) + start, count, view.strides[1], limit)
          : all_below(static_cast<const int32_t*>(view.data) + start, count, view.strides[1], limit);
  if (good) return;
  for (int64_t j = first; j < first + count; ++j) {
    const int64_t entry = index_at(view, row, j);
    KP_CHECK_INDEX(entry >= 0 && entry < limit, table.name, "[", row, ", ", j, "] = ", entry, " (batch row ",
                   batch_row, ") is outside [0, ", limit, ")");
  }
}

}  // namespace kernelpair
