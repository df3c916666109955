// mla_decode: one query token per request over paged latents. The products, the softmax and the merge are those of
// decode_attention (decode_run.h) with one kv head, whose value is the first part of its key: a latent is read once.
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 warns of its own intrinsics

#include "common/decode_run.h"
#include "common/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

struct Call {
  const View &q_nope, &q_pe, &kv_cache, &seq_lens, &page_table, &out;
  float* rows;  // [B, H, splits, Dl] partial results in the workspace, of any alignment
  float* lse;   // [B, H, splits]
  int64_t splits;
  float scale;

  // Page by page: the rows of one are evenly spaced.
  KP_NOINLINE void locate(int64_t b, int64_t first, KeyBlock& block) const {
    const int64_t page = kv_cache.sizes[1], step = kv_cache.strides[1] * element_size(kv_cache.dtype);
    for (int64_t j = 0; j < block.keys;) {
      const int64_t slot = (first + j) % page, end = least(block.keys, j + page - slot);
      const char* row = at(kv_cache, index_at(page_table, b, (first + j) / page), slot);
      for (; j < end; ++j, row += step) block.k[j] = block.v[j] = row;
    }
  }
  Partial partial(int64_t b, int64_t head, int64_t split) const {
    const int64_t index = (b * q_nope.sizes[1] + head) * splits + split;
    return {rows + index * q_nope.sizes[2], lse + index};
  }
};

template <class T>
struct PageSource {
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
  const DecodeShape shape{1, heads, D, Dl, 0, 0, true};

  for_each_item(requests * plan.splits, total * D * size, [&](int64_t item) {
    const int64_t b = item / plan.splits, split = item % plan.splits, keys = index_at(call.seq_lens, b);
    const int64_t splits = plan.splits_of(keys), length = plan.split_keys(keys);
    if (keys == 0 && split == 0)
      for (int64_t h = 0; h < heads; ++h) write_zeros(at<T>(call.out, b, h), Dl);
    if (split >= splits) return;
    run_item<T>(shape, {call.scale, 0}, split * length, least(keys, (split + 1) * length),
                                call.kv_cache.strides[1] * size, PageSource<T>{call, b, split, splits});
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

// `splits` partial results have room in the workspace; `literal`: they are all used, as far as there are keys.
void mla_decode(const View& q_nope, const View& q_pe, const View& kv_cache, const View& seq_lens, const View& page_table,
                const View& workspace, const View& out, double sm_scale, int64_t splits, bool literal) {
  const int64_t requests = q_nope.sizes[0], heads = q_nope.sizes[1];
  if (requests == 0 || heads == 0) return;
  int64_t total = 0, longest = 0;
  for (int64_t b = 0; b < requests; ++b) {
    total += index_at(seq_lens, b);
    longest = most(longest, index_at(seq_lens, b));
  }
  const SplitPlan plan = literal ? literal_splits(splits) : plan_splits(splits, requests, total, longest, 1);
  const int64_t row_bytes = round_up(requests * heads * splits * q_nope.sizes[2] * 4, 256);
  char* space = static_cast<char*>(workspace.data);
  const Call call{q_nope, q_pe, kv_cache, seq_lens, page_table, out, reinterpret_cast<float*>(space),
                  reinterpret_cast<float*>(space + row_bytes), splits, static_cast<float>(sm_scale)};
  with_float(q_nope.dtype, [&](auto element) { attend<decltype(element)>(call, plan, total); });
}

}  // namespace kernelpair::KP_TIER
