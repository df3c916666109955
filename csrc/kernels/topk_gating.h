// What the kernel of topk_gating takes. Contract: docs/contracts/topk_gating.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct TopkGatingArguments {
  const View& logits;           // [T, E]
  const View& correction_bias;  // [E] or undefined
  const View& weights;          // [T, k] f32, contiguous
  const View& ids;              // [T, k] i32, contiguous
  bool sigmoid, renormalize;
  int64_t num_expert_group, topk_group, num_valid;
  float scaling_factor;
};
KP_KERNEL(topk_gating, TopkGatingArguments);

}  // namespace kernelpair
