// paged_attention: keys in pages, for the prefill engine; and for the engine of decode_attention where no
// request has more than one row: that one reads a token with all its heads at once, which is twice as fast
// when reading is all there is, and of float8 it gets numbers (widened_rows.h).
#include "kernels/paged_attention.h"

#include "attention/decode_run.h"
#include "attention/prefill_keys.h"
#include "attention/sinks.h"
#include "attention/widened_rows.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(paged_sloped_rows);
KP_PATH(paged_sloped_step);
KP_PATH(paged_widened_codes);

struct PageKeys : PagedAttentionArguments {
  KP_INLINE Sequence sequence(int64_t b) const {
    const int64_t start = index_at(cu_seqlens_q, b), rows = index_at(cu_seqlens_q, b + 1) - start,
                  keys = index_at(cache_seqlens, b);
    const int64_t position = keys - rows;  // of row 0
    return {start, rows, keys,
            window_left >= 0 && window_left < kUnbounded ? position - window_left : -kUnbounded,
            window_right >= 0 && window_right < kUnbounded ? position + window_right + 1 : kUnbounded};
  }

  void locate(int64_t b, int64_t head, int64_t first, int64_t count, const char** keys,
              const char** values) const {
    const int64_t page = k_cache.sizes[1];
    for (int64_t j = 0, column = first / page, slot = first % page; j < count; ++column, slot = 0) {
      const int64_t id = index_at(page_table, b, column);
      for (; slot < page && j < count; ++slot, ++j) {
        keys[j] = at(k_cache, id, slot, head);
        values[j] = at(v_cache, id, slot, head);
      }
    }
  }
};

// --- one row a request -------------------------------------------------------------------------------------

struct PagedStep {
  const PageKeys& keys;
  Scaling scaling;
  bool latent;                // the key is its value and what follows it in memory: q goes behind qv
  float* partials = nullptr;  // [request][head][split][Dv + 1]
  int64_t splits = 1;

  int64_t group() const { return keys.q.sizes[1] / keys.k_cache.sizes[2]; }
  int64_t width() const { return keys.q.sizes[2] + (latent ? keys.qv.sizes[2] : 0); }
  int64_t value_width() const { return keys.v_cache.sizes[3]; }
  const View& key_cache() const { return latent ? keys.v_cache : keys.k_cache; }
  bool coded() const { return keys.k_cache.dtype != keys.q.dtype; }  // float8, whose numbers are q's
  Partial partial(int64_t b, int64_t head, int64_t split) const {
    float* row = partials + ((b * keys.q.sizes[1] + head) * splits + split) * (value_width() + 1);
    return {row, row + value_width()};
  }
};

// One run of keys of request b, for a run of kv heads.
template <class T>
struct PagedItem {
  using Element = T;
  const PagedStep& step;
  int64_t b, row;             // request, and its row of q
  int64_t first_key;          // that the row sees
  int64_t first_head, heads;  // kv heads
  int64_t split, splits;

  void queries(T* to, int64_t padded) const {
    const int64_t D = step.keys.q.sizes[2], group = step.group();
    for (int64_t h = first_head * group; h < (first_head + heads) * group; ++h, to += padded) {
      const int64_t front = step.width() - D;
      if (front) __builtin_memcpy(to, at(step.keys.qv, row, h), front * sizeof(T));
      __builtin_memcpy(to + front, at(step.keys.q, row, h), D * sizeof(T));
      __builtin_memset(to + front + D, 0, (padded - front - D) * sizeof(T));
    }
  }

  void rows(int64_t first, KeyBlock& block) const {
    step.keys.locate(b, first_head, first_key + first, block.keys, block.k, block.v);
    if (step.latent) __builtin_memcpy(block.k, block.v, block.keys * sizeof(block.k[0]));
  }

  void widen(KeyBlock& block, char* room) const {
    mark(paths::paged_widened_codes);
    auto* to = reinterpret_cast<T*>(room);
    widen_rows(step.keys.k_cache, heads, block.keys, block.k, to);
    widen_rows(step.keys.v_cache, heads, block.keys, block.v, to + block.keys * heads * step.width());
  }

  void result(int64_t h, int64_t g, const float* sums, float top, float sum) const {
    const int64_t head = (first_head + h) * step.group() + g, Dv = step.value_width();
    const View& descales = step.keys.v_descale;
    const float descale = descales.defined ? *at<float>(descales, b, first_head + h) : 1;
    if (splits == 1)
      write_result(at<T>(step.keys.out, row, head), Dv, sums, top, sum, sink_of(step.keys.sinks, head),
                   descale);
    else
      write_partial(step.partial(b, head, split), Dv, sums, top, sum, descale);
  }
};

// Whether the decode engine fits: at most one row a request, and one row of memory for all of a key.
bool is_step(const PageKeys& keys, bool& latent) {
  const View &k = keys.k_cache, &v = keys.v_cache, &qv = keys.qv;
  latent = qv.defined && static_cast<char*>(v.data) + v.sizes[3] * element_size(v.dtype) == k.data;
  for (int d = 0; d < 3 && latent; ++d) latent = k.sizes[d] == 1 || k.strides[d] == v.strides[d];
  if (qv.defined && !latent) return false;
  for (int64_t b = 0; b < keys.cache_seqlens.sizes[0]; ++b)
    if (keys.sequence(b).rows > 1) return false;
  return true;
}

template <class T>
void attend_step(PagedStep step, int64_t most_splits) {
  const PageKeys& keys = step.keys;
  const int64_t requests = keys.cache_seqlens.sizes[0], kv_heads = keys.k_cache.sizes[2],
                heads = keys.q.sizes[1];
  const int64_t Dv = step.value_width(), size = element_size(keys.k_cache.dtype);
  const auto seen = [&](int64_t b) {
    const Sequence sequence = keys.sequence(b);
    return sequence.rows ? sequence.high(0) - sequence.low(0) : 0;
  };
  KeyCounts counts;
  for (int64_t b = 0; b < requests; ++b) counts.add(seen(b));
  const SplitPlan plan = plan_splits(most_splits, counts, kv_heads);
  const int64_t part_heads = divide_up(kv_heads, plan.head_parts);
  const int64_t bytes = counts.total * kv_heads * (step.width() + (step.latent ? 0 : Dv)) * size;
  step.splits = plan.splits;
  if (plan.splits > 1)
    step.partials =
        static_cast<float*>(__builtin_malloc(requests * heads * plan.splits * (Dv + 1) * sizeof(float)));

  for_each_item(requests * plan.splits * plan.head_parts, bytes, [&](int64_t item) {
    const int64_t b = item / (plan.splits * plan.head_parts), split = item / plan.head_parts % plan.splits;
    const int64_t first_head = item % plan.head_parts * part_heads,
                  own = least(part_heads, kv_heads - first_head);
    const Sequence sequence = keys.sequence(b);
    const int64_t n = seen(b), splits = plan.splits_of(n), length = plan.split_keys(n);
    if (sequence.rows == 0 || own <= 0 || (split >= splits && split > 0)) return;
    if (n == 0) {
      for (int64_t h = first_head * step.group(); h < (first_head + own) * step.group(); ++h)
        write_zeros(at<T>(keys.out, sequence.first_row, h), Dv);
      return;
    }
    Scaling scaling = step.scaling;
    if (scaling.slopes) scaling.slopes += first_head * step.group();
    scaling.position = sequence.keys - 1 - sequence.low(0);
    if (keys.k_descale.defined) {
      scaling.factors = at<float>(keys.k_descale, b, first_head);
      scaling.factor_stride = keys.k_descale.strides[1];
    }
    const View& rows = step.key_cache();
    DecodeShape shape{.heads = own,
                      .group = step.group(),
                      .D = step.width(),
                      .Dv = Dv,
                      .k_head_stride = rows.strides[2] * size,
                      .v_head_stride = keys.v_cache.strides[2] * size,
                      .shared = step.latent};
    if (step.coded()) {
      constexpr int64_t kNumber = sizeof(T);
      shape.codes = {.row_bytes = own * (shape.D + Dv) * kNumber,
                     .k_head_stride = shape.k_head_stride,
                     .v_head_stride = shape.v_head_stride,
                     .shift = kNumber == 4 ? 2 : 1};
      shape.k_head_stride = shape.D * kNumber;
      shape.v_head_stride = Dv * kNumber;
    }
    const PagedItem<T> source{.step = step,
                              .b = b,
                              .row = sequence.first_row,
                              .first_key = sequence.low(0),
                              .first_head = first_head,
                              .heads = own,
                              .split = split,
                              .splits = splits};
    _decode_item({.dtype = keys.q.dtype,
                  .shape = shape,
                  .scaling = scaling,
                  .first = split * length,
                  .last = least(n, (split + 1) * length),
                  .slot_stride = rows.strides[1] * size,
                  .source = decode_source(source)});
  });
  if (plan.splits == 1) return;

  for_each_item(requests, requests * heads * plan.splits * Dv * 4, [&](int64_t b) {
    const int64_t splits = plan.splits_of(seen(b)), row = keys.sequence(b).first_row;
    if (splits < 2) return;
    float* scratch = static_cast<float*>(thread_scratch(round_up(Dv, kLanes) * sizeof(float)));
    for (int64_t h = 0; h < heads; ++h)
      merge_splits(at<T>(keys.out, row, h), Dv, splits, [&](int64_t s) { return step.partial(b, h, s); },
                   sink_of(keys.sinks, h), scratch);
  });
  __builtin_free(step.partials);
}

}  // namespace

void paged_attention(const PagedAttentionArguments& arguments) {
  const View &q = arguments.q, &k_cache = arguments.k_cache, &v_cache = arguments.v_cache;
  const int64_t requests = arguments.cache_seqlens.sizes[0];
  if (q.sizes[0] == 0 || q.sizes[1] == 0 || requests == 0) return;
  const PageKeys source{arguments};
  bool latent = false;
  const bool is_one_row_each = is_step(source, latent);
  if (arguments.alibi_slopes) mark(is_one_row_each ? paths::paged_sloped_step : paths::paged_sloped_rows);
  if (!is_one_row_each)
    return _prefill({.q = q,
                     .out = arguments.out,
                     .sinks = arguments.sinks,
                     .qv = arguments.qv,
                     .k_descale = arguments.k_descale,
                     .v_descale = arguments.v_descale,
                     .requests = requests,
                     .kv_heads = k_cache.sizes[2],
                     .width = q.sizes[2],
                     .value_width = v_cache.sizes[3],
                     .scale = arguments.softmax_scale,
                     .cap = arguments.softcap,
                     .slopes = arguments.alibi_slopes,
                     .keys = key_source(source, k_cache.dtype)});
  const PagedStep step{.keys = source,
                       .scaling = {.scale = arguments.softmax_scale,
                                   .cap = arguments.softcap,
                                   .slopes = arguments.alibi_slopes},
                       .latent = latent};
  const int64_t most_splits = arguments.num_splits > 0 ? arguments.num_splits : kUnbounded;
  with_float(q.dtype, [&](auto element) { attend_step<decltype(element)>(step, most_splits); });
}

}  // namespace kernelpair::KP_TIER
