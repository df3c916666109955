// What the kernel of fused_moe and shared_expert takes. Contract: docs/contracts/fused_moe.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

// The weights of one projection of all experts: packed panels [E, ceil(N/32), ...], of floats or of i8.
struct ExpertWeights {
  const View& data;
  const View &sums, &scale;  // [E, N] i32 and f32, of i8 alone
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
