// What the kernel of fused_moe and shared_expert takes. Contract: docs/contracts/fused_moe.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

// The weights of one projection of all experts: packed panels [E, ceil(N/32), ...], of floats, of i8, or
// of u8, the codes of float8_e4m3fn.
struct ExpertWeights {
  const View& data;
  const View &sums,
      &scale;  // of i8 [E, N] i32 and f32; of u8 none, and [E, ceil(N/block_n), ceil(K/block_k)] f32
  int64_t block_n, block_k;  // of u8 alone
  const View& bias;          // [E, N], may be absent
};

struct FusedMoeArguments {
  const View& x;  // [T, D]
  ExpertWeights w13, w2;
  int64_t inner;                        // I: w13 has 2 I outputs, w2 as many inputs
  const View &topk_weights, &topk_ids;  // [T, k] f32 and ids; absent: expert 0 with weight 1 for all
  bool apply_router_weight_on_input;    // k = 1
  const View& routed;                   // [T, D], may be absent
  float routed_scaling_factor;
  const View& out;  // [T, D], contiguous
};
KP_KERNEL(fused_moe, FusedMoeArguments);

}  // namespace kernelpair
