// What the kernels of pack_int4_weight take. Contract: docs/contracts/pack_int4_weight.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct PackInt4WeightArguments {
  const View& codes;          // [N, K] u8
  const View& scales;         // [N, groups] of a float dtype; f32 where it is written
  const View& zeros;          // [N, groups] u8; absent: 8
  const View& data;           // [panels, blocks, 2, 16, 16] u8
  const View& packed_scales;  // [panels, groups, 32] f32
  const View& packed_zeros;   // [panels, groups, 32] u8
};
KP_KERNEL(pack_int4_weight, PackInt4WeightArguments);
KP_KERNEL(unpack_int4_weight, PackInt4WeightArguments);

}  // namespace kernelpair
