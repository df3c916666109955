// What the kernels of pack_linear_weight take. Contract: docs/contracts/pack_linear_weight.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct PackLinearWeightArguments {
  const View& weight;  // [N, K]; of any strides where it is read
  const View& packed;  // [panels, blocks, 2, 32 / r, 16, r]
};
KP_KERNEL(pack_linear_weight, PackLinearWeightArguments);
KP_KERNEL(unpack_linear_weight, PackLinearWeightArguments);

}  // namespace kernelpair
