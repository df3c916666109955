// decode_attention: one query token per request over a slot cache. Bound by reading the cache once; see
// _decode_item.h for the engine, decode_run.h for splits and their merge.
#include "kernels/decode_attention.h"

#include "attention/decode_run.h"
#include "attention/sinks.h"
#include "attention/slot_range.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

struct Call : DecodeAttentionArguments {
  SlotRequests requests;
  Scaling scaling;

  int64_t group() const { return q.sizes[1] / k_cache.sizes[1]; }
  float sink(int64_t head) const { return sink_of(sinks, head); }
  KP_NOINLINE void locate(const SlotRange& range, int64_t first, int64_t head, KeyBlock& block) const {
    const char *k = at(k_cache, 0, head), *v = at(v_cache, 0, head);
    const int64_t size = element_size(q.dtype), k_stride = k_cache.strides[0] * size,
                  v_stride = v_cache.strides[0] * size;
    for (int64_t j = 0; j < block.keys; ++j) {
      const int64_t slot = index_at(req_to_token, range.row, range.column + first + j);
      block.k[j] = k + slot * k_stride;
      block.v[j] = v + slot * v_stride;
    }
  }
  Partial partial(int64_t b, int64_t head, int64_t split) const {
    float* row = at<float>(attn_logits, b, head, split);
    return {row, row + attn_logits.strides[3] * v_cache.sizes[2]};
  }
};

// One run of keys of request b, for a run of kv heads.
template <class T>
struct SlotSource {
  using Element = T;
  const Call& call;
  int64_t b;
  SlotRange range;
  int64_t first_head, heads;  // kv heads
  int64_t split, splits;

  KP_NOINLINE void queries(T* to, int64_t width) const {
    const int64_t D = call.q.sizes[2], group = call.group();
    for (int64_t h = first_head * group; h < (first_head + heads) * group; ++h, to += width) {
      __builtin_memcpy(to, at(call.q, b, h), D * sizeof(T));
      __builtin_memset(to + D, 0, (width - D) * sizeof(T));
    }
  }

  void rows(int64_t first, KeyBlock& block) const { call.locate(range, first, first_head, block); }

  void result(int64_t h, int64_t g, const float* sums, float top, float sum) const {
    const int64_t head = (first_head + h) * call.group() + g, Dv = call.v_cache.sizes[2];
    if (splits == 1)
      write_result(at<T>(call.out, b, head), Dv, sums, top, sum, call.sink(head));
    else
      write_partial(call.partial(b, head, split), Dv, sums, top, sum);
  }
};

template <class T>
void attend(const Call& call) {
  const int64_t requests = call.q.sizes[0], kv_heads = call.k_cache.sizes[1], size = sizeof(T);
  const int64_t D = call.q.sizes[2], Dv = call.v_cache.sizes[2];
  KeyCounts keys;
  for (int64_t b = 0; b < requests; ++b) keys.add(call.requests.range(b).keys);
  const SplitPlan plan = plan_splits(call.attn_logits.sizes[2], keys, kv_heads);
  const int64_t part_heads = divide_up(kv_heads, plan.head_parts);
  const int64_t bytes = keys.total * kv_heads * (D + (call.shared ? 0 : Dv)) * size;

  for_each_item(requests * plan.splits * plan.head_parts, bytes, [&](int64_t item) {
    const int64_t b = item / (plan.splits * plan.head_parts), split = item / plan.head_parts % plan.splits;
    const int64_t first_head = item % plan.head_parts * part_heads,
                  heads = least(part_heads, kv_heads - first_head);
    const SlotRange range = call.requests.range(b);
    const int64_t splits = plan.splits_of(range.keys), length = plan.split_keys(range.keys);
    if (heads <= 0 || (split >= splits && split > 0)) return;
    if (range.keys == 0) {
      for (int64_t h = first_head * call.group(); h < (first_head + heads) * call.group(); ++h)
        write_zeros(at<T>(call.out, b, h), Dv);
      return;
    }
    const DecodeShape shape{.heads = heads,
                            .group = call.group(),
                            .D = D,
                            .Dv = Dv,
                            .k_head_stride = call.k_cache.strides[1] * size,
                            .v_head_stride = call.v_cache.strides[1] * size,
                            .shared = call.shared};
    const SlotSource<T> source{.call = call,
                               .b = b,
                               .range = range,
                               .first_head = first_head,
                               .heads = heads,
                               .split = split,
                               .splits = splits};
    _decode_item({.dtype = call.q.dtype,
                  .shape = shape,
                  .scaling = call.scaling,
                  .first = split * length,
                  .last = least(range.keys, (split + 1) * length),
                  .slot_stride = call.k_cache.strides[0] * size,
                  .source = decode_source(source)});
  });
  if (plan.splits == 1) return;

  for_each_item(requests, requests * call.q.sizes[1] * plan.splits * Dv * 4, [&](int64_t b) {
    const int64_t splits = plan.splits_of(call.requests.range(b).keys);
    if (splits < 2) return;
    float* row = static_cast<float*>(thread_scratch(round_up(Dv, kLanes) * sizeof(float)));
    for (int64_t h = 0; h < call.q.sizes[1]; ++h)
      merge_splits(at<T>(call.out, b, h), Dv, splits, [&](int64_t s) { return call.partial(b, h, s); },
                   call.sink(h), row);
  });
}

// Rows of key and value to their slots, before anything is read.
KP_NOINLINE void write_new_rows(const View& from, const View& cache, const SlotRequests& requests) {
  const int64_t heads = from.sizes[1], bytes = from.sizes[2] * element_size(from.dtype);
  parallel_for(from.sizes[0], kSerialBytes / (heads * bytes) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      if (requests.is_pad(b)) continue;
      for (int64_t h = 0; h < heads; ++h)
        __builtin_memcpy(at(cache, index_at(requests.loc, b), h), at(from, b, h), bytes);
    }
  });
}

}  // namespace

void decode_attention(const DecodeAttentionArguments& arguments) {
  const View &q = arguments.q, &key = arguments.key;
  const SlotRequests requests{.req_pool_indices = arguments.req_pool_indices,
                              .seq_lens = arguments.seq_lens,
                              .encoder_lens = arguments.encoder_lens,
                              .loc = arguments.loc,
                              .sliding_window = arguments.sliding_window,
                              .is_cross_attn = arguments.is_cross_attn,
                              .has_pad = arguments.has_pad,
                              .pad_slot = arguments.pad_slot};
  if (key.defined) {
    write_new_rows(key, arguments.k_cache, requests);
    if (!arguments.shared) write_new_rows(arguments.value, arguments.v_cache, requests);
  }
  if (q.sizes[0] == 0 || q.sizes[1] == 0) return;
  const Call call{arguments, requests, {.scale = arguments.sm_scale, .cap = arguments.logit_cap}};
  with_float(q.dtype, [&](auto element) { attend<decltype(element)>(call); });
}

}  // namespace kernelpair::KP_TIER
