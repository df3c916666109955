// What the kernels of pack_fp8_weight take. Contract: docs/contracts/pack_fp8_weight.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct PackFp8WeightArguments {
  const View& weight;  // [N, K] f8e4m3; of any strides where it is read
  const View& data;    // [panels, blocks, 2, 16, 16, 2] u8
};
KP_KERNEL(pack_fp8_weight, PackFp8WeightArguments);
KP_KERNEL(unpack_fp8_weight, PackFp8WeightArguments);

}  // namespace kernelpair
