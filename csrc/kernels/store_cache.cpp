// store_cache: rows of k and v into cache slots. It is bound by memory; two things matter.
// - Adjacent heads of a token are one run of bytes, where both sides allow it.
// - A large batch streams past the caches (non-temporal stores), which saves reading the lines that are
//   overwritten; a small one stays in them, for attention reads it back at once.
#include "kernels/store_cache.h"

#include "core/parallel.h"
#include "core/path.h"
#include "core/view.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kStreamingBytes = 4 << 20;  // twice the L2 cache of a core: less would still be found there
constexpr int64_t kGrainBytes = 1 << 20;      // 60 us of copying, about the price of waking a sleeping thread

KP_PATH(store_dense);
KP_PATH(store_by_head);
KP_PATH(store_streamed);

// What is copied for one token: `runs` pieces of `bytes`, a stride apart on either side.
struct TokenCopy {
  int64_t runs;
  int64_t bytes;
  int64_t from_stride;
  int64_t to_stride;
};

TokenCopy plan_copy(const View& from, const View& to) {
  const int64_t heads = from.sizes[1], width = from.sizes[2], size = element_size(from.dtype);
  if (heads * width == 0) return {0, 0, 0, 0};
  if (heads == 1 || (from.strides[1] == width && to.strides[1] == width))
    return {1, heads * width * size, 0, 0};
  return {heads, width * size, from.strides[1] * size, to.strides[1] * size};
}

template <bool kStream>
void copy_token(const TokenCopy& plan, const char* from, char* to) {
  for (int64_t r = 0; r < plan.runs; ++r, from += plan.from_stride, to += plan.to_stride) {
    if constexpr (kStream)
      stream_bytes(to, from, plan.bytes);
    else
      __builtin_memcpy(to, from, plan.bytes);
  }
}

}  // namespace

void store_cache(const StoreCacheArguments& call) {
  const TokenCopy k_plan = plan_copy(call.k, call.k_cache), v_plan = plan_copy(call.v, call.v_cache);
  const int64_t tokens = call.indices.sizes[0];
  const int64_t token_bytes = k_plan.runs * k_plan.bytes + v_plan.runs * v_plan.bytes;
  if (token_bytes == 0) return;
  const bool stream = tokens * token_bytes >= kStreamingBytes;
  mark(stream ? paths::store_streamed : k_plan.runs == 1 ? paths::store_dense : paths::store_by_head);
  parallel_for(tokens, kGrainBytes / token_bytes + 1, [&](int64_t begin, int64_t end) {
    const auto copy = stream ? copy_token<true> : copy_token<false>;
    for (int64_t n = begin; n < end; ++n) {
      const int64_t slot = index_at(call.indices, n);
      if (call.has_pad && slot == call.pad_slot) continue;
      copy(k_plan, at(call.k, n), at(call.k_cache, slot));
      copy(v_plan, at(call.v, n), at(call.v_cache, slot));
    }
    if (stream) stream_fence();
  });
}

}  // namespace kernelpair::KP_TIER
