// mla_decode: one query token per request over paged latents. The engine and the merge are those of
// decode_attention (_decode_item.h, decode_run.h) with one kv head, whose value is the first part of its key: a
// latent is read once.
#include "kernels/mla_decode.h"

#include "attention/decode_run.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

// The workspace holds partial results [B, H, splits, Dl] and, behind them, their log-sum-exp [B, H, splits];
// of any alignment.
struct Call : MlaDecodeArguments {
  int64_t row_bytes() const {
    return round_up(q_nope.sizes[0] * q_nope.sizes[1] * splits * q_nope.sizes[2] * 4, kWorkspacePiece);
  }

  // Page by page: the rows of one are evenly spaced.
  KP_NOINLINE void locate(int64_t b, int64_t first, KeyBlock& block) const {
    const int64_t page = kv_cache.sizes[1], slot_stride = kv_cache.strides[1] * element_size(kv_cache.dtype);
    for (int64_t j = 0; j < block.keys;) {
      const int64_t slot = (first + j) % page, end = least(block.keys, j + page - slot);
      const char* row = at(kv_cache, index_at(page_table, b, (first + j) / page), slot);
      for (; j < end; ++j, row += slot_stride) block.k[j] = block.v[j] = row;
    }
  }
  Partial partial(int64_t b, int64_t head, int64_t split) const {
    const int64_t index = (b * q_nope.sizes[1] + head) * splits + split;
    char* space = static_cast<char*>(workspace.data);
    return {.row = reinterpret_cast<float*>(space) + index * q_nope.sizes[2],
            .lse = reinterpret_cast<float*>(space + row_bytes()) + index};
  }
};

template <class T>
struct PageSource {
  using Element = T;
  const Call& call;
  int64_t b, split, splits;

  KP_NOINLINE void queries(T* to, int64_t width) const {
    const int64_t nope = call.q_nope.sizes[2], pe = call.q_pe.sizes[2];
    for (int64_t h = 0; h < call.q_nope.sizes[1]; ++h, to += width) {
      __builtin_memcpy(to, at(call.q_nope, b, h), nope * sizeof(T));
      __builtin_memcpy(to + nope, at(call.q_pe, b, h), pe * sizeof(T));
      __builtin_memset(to + nope + pe, 0, (width - nope - pe) * sizeof(T));
    }
  }

  void rows(int64_t first, KeyBlock& block) const { call.locate(b, first, block); }

  void result(int64_t, int64_t head, const float* sums, float top, float sum) const {
    const int64_t Dl = call.q_nope.sizes[2];
    if (splits == 1)
      write_result(at<T>(call.out, b, head), Dl, sums, top, sum, -__builtin_inff());
    else
      write_partial(call.partial(b, head, split), Dl, sums, top, sum);
  }
};

template <class T>
void attend(const Call& call, const SplitPlan& plan, int64_t total) {
  const int64_t requests = call.q_nope.sizes[0], heads = call.q_nope.sizes[1], Dl = call.q_nope.sizes[2];
  const int64_t D = Dl + call.q_pe.sizes[2], size = sizeof(T);
  const DecodeShape shape{.heads = 1,
                          .group = heads,
                          .D = D,
                          .Dv = Dl,
                          .k_head_stride = 0,
                          .v_head_stride = 0,
                          .shared = true,
                          .accurate = call.accurate};

  for_each_item(requests * plan.splits, total * D * size, [&](int64_t item) {
    const int64_t b = item / plan.splits, split = item % plan.splits, keys = index_at(call.seq_lens, b);
    const int64_t splits = plan.splits_of(keys), length = plan.split_keys(keys);
    if (keys == 0 && split == 0)
      for (int64_t h = 0; h < heads; ++h) write_zeros(at<T>(call.out, b, h), Dl);
    if (split >= splits) return;
    const PageSource<T> source{.call = call, .b = b, .split = split, .splits = splits};
    _decode_item({.dtype = call.q_nope.dtype,
                  .shape = shape,
                  .scaling = {.scale = call.sm_scale, .cap = 0},
                  .first = split * length,
                  .last = least(keys, (split + 1) * length),
                  .slot_stride = call.kv_cache.strides[1] * size,
                  .source = decode_source(source)});
  });
  if (plan.splits == 1) return;

  for_each_item(requests, requests * heads * plan.splits * Dl * 4, [&](int64_t b) {
    const int64_t splits = plan.splits_of(index_at(call.seq_lens, b));
    if (splits < 2) return;
    float* row = static_cast<float*>(thread_scratch(round_up(Dl, kLanes) * sizeof(float)));
    for (int64_t h = 0; h < heads; ++h)
      merge_splits(at<T>(call.out, b, h), Dl, splits, [&](int64_t s) { return call.partial(b, h, s); },
                   -__builtin_inff(), row);
  });
}

}  // namespace

void mla_decode(const MlaDecodeArguments& arguments) {
  const int64_t requests = arguments.q_nope.sizes[0], heads = arguments.q_nope.sizes[1];
  if (requests == 0 || heads == 0) return;
  KeyCounts keys;
  for (int64_t b = 0; b < requests; ++b) keys.add(index_at(arguments.seq_lens, b));
  const int64_t splits = arguments.splits;
  const SplitPlan plan = arguments.literal ? literal_splits(splits) : plan_splits(splits, keys, 1);
  const Call call{arguments};
  with_float(call.q_nope.dtype, [&](auto element) { attend<decltype(element)>(call, plan, keys.total); });
}

}  // namespace kernelpair::KP_TIER
