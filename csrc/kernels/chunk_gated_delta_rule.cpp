// chunk_gated_delta_rule: the gated delta rule over whole sequences. Contract: docs/contracts/chunk_gated_delta_rule.md.
//
// bf16 in the tile tiers runs in chunks on tiles (chunk_gated_delta_rule_tiles.h), a work item being one key head of one
// sequence with all its value heads; everything else runs token by token on vectors (chunk_gated_delta_rule_tokens.h), an item
// being one block of value columns. Items of one head follow each other, so that equal ranges of items are equal work. Scratch
// is per thread and call: the state of an item and one chunk, independent of the length.
#include "common/parallel.h"
#include "common/scratch.h"
#include "kernels/chunk_gated_delta_rule_tiles.h"
#include "kernels/chunk_gated_delta_rule_tokens.h"

namespace kernelpair::KP_TIER {
namespace {

void clear_rows(const View& out, int64_t begin, int64_t end) {
  const int64_t bytes = (end - begin) * out.sizes[1] * out.sizes[2] * element_size(out.dtype);
  if (bytes > 0) __builtin_memset(at(out, begin), 0, bytes);
}

struct Batch {
  View state_indices, has_initial_state, cu_seqlens;
  bool has_pad;
  int64_t pad_slot;
};

// Sequence n; begin == end where there is nothing to do for it.
Sequence sequence_of(const Call& call, const Batch& batch, int64_t n) {
  Sequence seq = {index_at(batch.cu_seqlens, n), index_at(batch.cu_seqlens, n + 1), -1, n};
  if (batch.state_indices.defined) {
    seq.final_slot = index_at(batch.state_indices, n);
    if (batch.has_pad && seq.final_slot == batch.pad_slot) seq.end = seq.begin;
  }
  const bool warm = !batch.has_initial_state.defined || *at<bool>(batch.has_initial_state, n);
  if (call.initial_state.defined && warm) seq.initial_slot = seq.final_slot;
  return seq;
}

// A sequence without tokens: a fresh final state equals the initial one.
void pass_state_on(const Call& call, const Sequence& seq) {
  for (int64_t h = 0; h < call.v.sizes[1]; ++h)
    for (int64_t k0 = 0; k0 < call.q.sizes[2]; k0 += 16)
      for (int64_t v0 = 0; v0 < call.v.sizes[2]; v0 += 16) {
        F32x16 rows[16] = {};
        if (seq.initial_slot >= 0) load_state_block(call, seq.initial_slot, h, k0, v0, rows);
        store_state_block(call, seq.final_slot, h, k0, v0, rows);
      }
}

// Rows that no live sequence covers are zero.
void clear_uncovered(const Call& call, const Batch& batch) {
  const int64_t count = batch.cu_seqlens.sizes[0] - 1;
  clear_rows(call.out, 0, index_at(batch.cu_seqlens, 0));
  clear_rows(call.out, index_at(batch.cu_seqlens, count), call.out.sizes[0]);
  for (int64_t n = 0; n < count; ++n) {
    const Sequence seq = sequence_of(call, batch, n);
    if (seq.begin == seq.end) {
      clear_rows(call.out, seq.begin, index_at(batch.cu_seqlens, n + 1));
      if (!batch.state_indices.defined) took(Path::chunk_state_passed), pass_state_on(call, seq);
    }
  }
}

template <class Run>
KP_INLINE void run_items(const Call& call, const Batch& batch, int64_t items_each, int64_t scratch_bytes, const Run& run) {
  const int64_t count = batch.cu_seqlens.sizes[0] - 1;
  parallel_for(items_each * count, 1, [&](int64_t begin, int64_t end) {
    char* scratch = static_cast<char*>(thread_scratch(scratch_bytes));
    for (int64_t item = begin; item < end; ++item) {
      const Sequence seq = sequence_of(call, batch, item % count);
      if (seq.begin < seq.end) run(seq, item / count, scratch);
    }
  });
}

}  // namespace

void chunk_gated_delta_rule(const View& q, const View& k, const View& v, const View& g, const View& beta,
                            const View& initial_state, const View& final_state, const View& state_indices,
                            const View& has_initial_state, const View& cu_seqlens, const View& out, bool value_major,
                            bool l2norm, double eps, double scale, bool has_pad, int64_t pad_slot) {
  const Call call = {q,           k,      v, g, beta, initial_state, final_state, out, value_major, l2norm,
                     static_cast<float>(eps), static_cast<float>(scale), v.sizes[1] / q.sizes[1]};
  const Batch batch = {state_indices, has_initial_state, cu_seqlens, has_pad, pad_slot};
  clear_uncovered(call, batch);
  const bool tiled = kHasTiles && q.dtype == Dtype::bf16;
  took(tiled ? Path::chunk_tiles : Path::chunk_tokens);
  if (value_major) took(Path::chunk_value_major);
  if constexpr (kHasTiles) {
    if (tiled) {
      run_items(call, batch, q.sizes[1], tile_scratch_bytes(call), [&](const Sequence& seq, int64_t head, char* scratch) {
        TileScope tiles;
        run_tiles(call, seq, head, scratch);
        stream_fence();
      });
      return;
    }
  }
  const int64_t blocks = column_blocks(call);
  run_items(call, batch, v.sizes[1] * blocks, token_scratch_bytes(call),
            [&](const Sequence& seq, int64_t item, char* scratch) {
              run_tokens(call, seq, item / blocks, item % blocks, scratch);
            });
}

}  // namespace kernelpair::KP_TIER
