// Ways that kernels take, and which of them were taken since the last time that somebody asked: a run of the harness can then say
// what of the kernels' code no case has reached. A mark that is set already costs one load.
#pragma once

#include <atomic>

#include "common/view.h"

// Grouped by the code that marks them. Those of tiles exist in tiers that have them, decode_pairs in avx512_bf16.
#define KP_PATHS(X)                                                                                                          \
  X(store_dense) X(store_by_head) X(store_streamed)                                                                          \
  X(linear_vectors_few) X(linear_vectors_many) X(linear_vectors_slices) X(linear_tiles_few) X(linear_tiles_whole)            \
  X(linear_tiles_slices)                                                                                                     \
  X(decode_one_split) X(decode_splits) X(decode_merged) X(decode_head_parts) X(decode_blocks) X(decode_rescaled)             \
  X(decode_fetched_ahead) X(decode_no_keys) X(decode_tiles_paired) X(decode_tiles_expanded) X(decode_pairs)                                  \
  X(prefill_vectors) X(prefill_tiles) X(prefill_masked) X(prefill_whole) X(prefill_capped) X(prefill_rescaled)               \
  X(prefill_unseen_block)                                                                                                    \
  X(conv_dense_channels) X(conv_any_strides) X(conv_token_tile) X(conv_token_step) X(conv_pad) X(conv_state_read)             \
  X(conv_state_fresh)                                                                                                        \
  X(step_value_major) X(step_key_major) X(step_whole_columns) X(step_tail_columns) X(step_pad)                               \
  X(chunk_tokens) X(chunk_tiles) X(chunk_tiles_second_half) X(chunk_tiles_padded) X(chunk_value_major) X(chunk_state_passed)

namespace kernelpair {

enum class Path : int {
#define KP_PATH_ENTRY(name) name,
  KP_PATHS(KP_PATH_ENTRY)
#undef KP_PATH_ENTRY
      count
};

extern std::atomic<bool> paths_taken[static_cast<int>(Path::count)];

KP_INLINE void took(Path path) {
  std::atomic<bool>& taken = paths_taken[static_cast<int>(path)];
  if (!taken.load(std::memory_order_relaxed)) taken.store(true, std::memory_order_relaxed);
}

}  // namespace kernelpair
