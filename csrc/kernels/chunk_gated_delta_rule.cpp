// chunk_gated_delta_rule: the gated delta rule over whole sequences. Contract:
// docs/contracts/chunk_gated_delta_rule.md.
//
// bf16 in the tile tiers runs in chunks on tiles (delta_rule/chunk_tiles.h), a work item being one key head
// of one sequence with all its value heads; everything else, and an accurate call where dot products stand
// for tiles, runs token by token on vectors (delta_rule/chunk_tokens.h), an item being some of the value
// columns of a key head; so does an item of the tiles whose states grow fast. Items of one head follow each
// other, so that equal ranges of items are equal work. Scratch is per thread and call: the states of an item
// and one chunk, independent of the length.
#include "kernels/chunk_gated_delta_rule.h"

#include "core/parallel.h"
#include "core/scratch.h"
#include "delta_rule/chunk_tiles.h"
#include "delta_rule/chunk_tokens.h"
#include "tiles/dot_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(chunk_tokens);
KP_PATH(chunk_tiles);
KP_PATH(chunk_value_major);
KP_PATH(chunk_state_passed);

// Twice the products pay on tiles, which are eight times as fast as fp32 vectors; dot products are twice as
// fast, and there the fp32 token loop takes less time than the accurate chunk.
constexpr bool kHasAccurateTiles = kHasTiles && !kHasDotProducts;

void clear_rows(const View& out, int64_t begin, int64_t end) {
  const int64_t bytes = (end - begin) * out.sizes[1] * out.sizes[2] * element_size(out.dtype);
  if (bytes > 0) __builtin_memset(at(out, begin), 0, bytes);
}

// Sequence n; begin == end where there is nothing to do for it.
Sequence sequence_of(const Call& call, int64_t n) {
  Sequence seq = {index_at(call.cu_seqlens, n), index_at(call.cu_seqlens, n + 1), -1, n};
  if (call.state_indices.defined) {
    seq.final_slot = index_at(call.state_indices, n);
    if (call.has_pad && seq.final_slot == call.pad_slot) seq.end = seq.begin;
  }
  const bool warm = !call.has_initial_state.defined || *at<bool>(call.has_initial_state, n);
  if (call.initial_state.defined && warm) seq.initial_slot = seq.final_slot;
  return seq;
}

// A sequence without tokens: a fresh final state is the initial one, bit for bit, or zeros.
void pass_state_on(const Call& call, const Sequence& seq) {
  const View &from = call.initial_state, &to = call.final_state;
  const int64_t row_bytes = to.sizes[3] * element_size(to.dtype);
  for (int64_t h = 0; h < to.sizes[1]; ++h)
    for (int64_t r = 0; r < to.sizes[2]; ++r)
      if (seq.initial_slot >= 0)
        __builtin_memcpy(at(to, seq.final_slot, h, r), at(from, seq.initial_slot, h, r), row_bytes);
      else
        __builtin_memset(at(to, seq.final_slot, h, r), 0, row_bytes);
}

// Rows that no live sequence covers are zero.
void clear_uncovered(const Call& call) {
  const int64_t count = call.cu_seqlens.sizes[0] - 1;
  clear_rows(call.out, 0, index_at(call.cu_seqlens, 0));
  clear_rows(call.out, index_at(call.cu_seqlens, count), call.out.sizes[0]);
  for (int64_t n = 0; n < count; ++n) {
    const Sequence seq = sequence_of(call, n);
    if (seq.begin == seq.end) {
      clear_rows(call.out, seq.begin, index_at(call.cu_seqlens, n + 1));
      if (!call.state_indices.defined) mark(paths::chunk_state_passed), pass_state_on(call, seq);
    }
  }
}

// The largest log decay for which exp of a chunk's sum is a number, and so no product of two of them 0 times
// infinity.
constexpr float kMostGrowth = 1;

bool grows_fast(const Call& call, const Sequence& seq, int64_t key_head) {
  const int64_t first = key_head * call.heads_per_key;
  for (int64_t t = seq.begin; t < seq.end; ++t)
    for (int64_t h = first; h < first + call.heads_per_key; ++h)
      if (*at<float>(call.g, t, h) > kMostGrowth) return true;
  return false;
}

template <class Run>
KP_INLINE void run_items(const Call& call, int64_t items_each, int64_t scratch_bytes, const Run& run) {
  const int64_t count = call.cu_seqlens.sizes[0] - 1;
  parallel_for(items_each * count, 1, [&](int64_t begin, int64_t end) {
    char* scratch = static_cast<char*>(thread_scratch(scratch_bytes));
    for (int64_t item = begin; item < end; ++item) {
      const Sequence seq = sequence_of(call, item % count);
      if (seq.begin < seq.end) run(seq, item / count, scratch);
    }
  });
}

}  // namespace

void chunk_gated_delta_rule(const ChunkGatedDeltaRuleArguments& arguments) {
  const Call call{arguments, arguments.v.sizes[1] / arguments.q.sizes[1]};
  clear_uncovered(call);
  const bool tiled = kHasTiles && call.q.dtype == Dtype::bf16 && (kHasAccurateTiles || !call.accurate);
  mark(tiled ? paths::chunk_tiles : paths::chunk_tokens);
  if (call.value_major) mark(paths::chunk_value_major);
  const int64_t blocks = call.heads_per_key * blocks_of_head(call), shares = shares_of_key_head(call);
  if constexpr (kHasTiles) {
    if (tiled) {
      run_items(call, call.q.sizes[1], most(tile_scratch_bytes(call), token_scratch_bytes(call, blocks)),
                [&](const Sequence& seq, int64_t head, char* scratch) {
        if (grows_fast(call, seq, head)) return run_tokens<Bf16>(call, seq, {head, 0, blocks}, scratch);
        TileScope tiles;
        if constexpr (kHasAccurateTiles)
          if (call.accurate) return run_tiles<2>(call, seq, head, scratch), stream_fence();
        run_tiles<1>(call, seq, head, scratch);
        stream_fence();
      });
      return;
    }
  }
  if (shares == 0) return;  // no columns
  run_items(call, call.q.sizes[1] * shares, token_scratch_bytes(call, divide_up(blocks, shares)),
            [&](const Sequence& seq, int64_t item, char* scratch) {
    const int64_t i = item % shares;
    const Share share{item / shares, i * blocks / shares, (i + 1) * blocks / shares};
    with_float(call.q.dtype, [&](auto element) { run_tokens<decltype(element)>(call, seq, share, scratch); });
  });
}

}  // namespace kernelpair::KP_TIER
