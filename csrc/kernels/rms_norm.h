// What the kernel of rms_norm takes. Contract: docs/contracts/rms_norm.md.
#pragma once

#include "core/kernel.h"
#include "core/rows.h"

namespace kernelpair {

struct RmsNormArguments {  // x, residual, gate and out as rows (core/rows.h)
  const View& x;
  const View& residual;  // or not defined
  const View& gate;      // or not defined
  const View& weight;    // [D], dense, or not defined
  const View& out;
  int64_t group;  // columns of one mean; divides D
  float eps;
  bool gemma;
};
KP_KERNEL(rms_norm, RmsNormArguments);

}  // namespace kernelpair
