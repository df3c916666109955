// What the kernel of merge_state takes. Contract: docs/contracts/merge_state.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct MergeStateArguments {
  const View &v_a, &v_b;      // [T, H, Dv]
  const View &lse_a, &lse_b;  // [T, H] f32
  const View& out;            // [T, H, Dv]
  const View& lse;            // [T, H] f32
};
KP_KERNEL(merge_state, MergeStateArguments);

}  // namespace kernelpair
