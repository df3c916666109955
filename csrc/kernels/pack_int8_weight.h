// What the kernels of pack_int8_weight take. Contract: docs/contracts/pack_int8_weight.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct PackInt8WeightArguments {
  const View& weight;  // [N, K] i8; of any strides where it is read
  const View& data;    // [panels, blocks, 2, 16, 16, 4] i8
  const View& sums;    // [N] i32; absent where data is unpacked
};
KP_KERNEL(pack_int8_weight, PackInt8WeightArguments);
KP_KERNEL(unpack_int8_weight, PackInt8WeightArguments);

}  // namespace kernelpair
