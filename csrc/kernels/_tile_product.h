// What the kernel of _tile_product takes.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct TileProductArguments {
  const View &a, &b;  // [M, K] and [K / 32, 16, N, 2], bf16
  const View& c;      // [M, N] f32, to which their product is added
};
KP_KERNEL(_tile_product, TileProductArguments);

}  // namespace kernelpair
