// merge_state: two partial attentions of the same queries become one. A row has two weights, of which the
// larger is exactly 1 before both are divided by their sum; products and their sum are rounded apart, so that
// the parts may be exchanged without a bit of difference. An empty part is never multiplied: its row may hold
// anything.
#include "kernels/merge_state.h"

#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainElements = 16 << 10;  // about 5 us

KP_PATH(merge_both);
KP_PATH(merge_one_part);
KP_PATH(merge_empty);

template <class T>
void mix(const T* a, const T* b, float weight_a, float weight_b, T* to, int64_t Dv) {
  const F32x16 of_a = splat(weight_a), of_b = splat(weight_b);
  each_wide<true>(0, Dv,
                  [&](int64_t d, auto... lanes) {  // only the rest is masked: that is slow on some CPUs
    store(to + d, load(a + d, lanes...) * of_a + load(b + d, lanes...) * of_b, lanes...);
  });
}

template <class T>
void merge_row(const MergeStateArguments& call, int64_t t, int64_t h) {
  const int64_t Dv = call.out.sizes[2];
  const float lse_a = *at<float>(call.lse_a, t, h), lse_b = *at<float>(call.lse_b, t, h);
  const bool a_first = lse_a >= lse_b;
  const float high = a_first ? lse_a : lse_b, low = a_first ? lse_b : lse_a;
  T* to = at<T>(call.out, t, h);
  float* lse = at<float>(call.lse, t, h);
  if (low == -__builtin_inff()) {
    const bool empty = high == low;
    mark(empty ? paths::merge_empty : paths::merge_one_part);
    if (Dv > 0 && empty)
      __builtin_memset(to, 0, Dv * sizeof(T));
    else if (Dv > 0)  // tensors without elements have no address
      __builtin_memcpy(to, at<T>(a_first ? call.v_a : call.v_b, t, h), Dv * sizeof(T));
    *lse = high;
    return;
  }
  mark(paths::merge_both);
  const float weight = __builtin_expf(low - high), total = 1.0f + weight;
  const float of_high = 1.0f / total, of_low = weight / total;
  mix(at<T>(call.v_a, t, h), at<T>(call.v_b, t, h), a_first ? of_high : of_low, a_first ? of_low : of_high,
      to, Dv);
  *lse = high + __builtin_logf(total);
}

}  // namespace

void merge_state(const MergeStateArguments& call) {
  const int64_t heads = call.out.sizes[1], rows = call.out.sizes[0] * heads;
  with_float(call.out.dtype, [&](auto element) {
    parallel_for(rows, kGrainElements / (call.out.sizes[2] + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) merge_row<decltype(element)>(call, i / heads, i % heads);
    });
  });
}

}  // namespace kernelpair::KP_TIER
