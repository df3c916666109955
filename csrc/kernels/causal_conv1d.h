// What the kernels of causal_conv1d take. Contract: docs/contracts/causal_conv1d.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

constexpr int64_t kConvBlock = 32;  // channels of a block of the packed weight

struct CausalConv1dArguments {
  const View& x;                    // [dim, T] with query_start_loc, else [B, dim, L]
  const View& packed;               // the packed weight
  const View& bias;                 // [dim], may be absent, as the next four
  const View& conv_states;          // [slots, dim, width - 1 or more]
  const View& query_start_loc;      // [B + 1]
  const View& cache_indices;        // [B]
  const View& has_initial_state;    // [B] bool
  const View& num_accepted_tokens;  // [B], given where the tokens are drafts
  const View& y;                    // the shape of x
  int64_t width;
  bool silu;
  bool always_initial;  // every sequence continues its state
  bool has_pad;
  int64_t pad_slot;
};
KP_KERNEL(causal_conv1d, CausalConv1dArguments);

struct CausalConv1dPackArguments {
  const View& weight;  // [dim, width], any strides
  const View& packed;  // [blocks, pairs, 32, 2]
  bool pack;           // else unpack
};
KP_KERNEL(causal_conv1d_pack, CausalConv1dPackArguments);

}  // namespace kernelpair
