// What the kernel of gdn_gating takes. Contract: docs/contracts/gdn_gating.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct GdnGatingArguments {
  const View &A_log, &dt_bias;  // [heads]
  const View &a, &b;            // [rows, heads]
  const View& g;                // [rows, heads] f32
  const View& beta;             // [rows, heads]
  float softplus_beta, softplus_threshold;
};
KP_KERNEL(gdn_gating, GdnGatingArguments);

}  // namespace kernelpair
