// What the kernel of int4_linear takes. Contract: docs/contracts/int4_linear.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct Int4LinearArguments {
  const View& x;       // [..., K]
  const View& data;    // as pack_int4_weight leaves it, and so are
  const View& scales;  // [panels, groups, 32] f32
  const View& zeros;   // [panels, groups, 32] u8
  int64_t group_size;
  bool bytes;        // x is quantized to int8
  const View& bias;  // [N], may be absent
  const View& out;   // [rows of x, N], contiguous
};
KP_KERNEL(int4_linear, Int4LinearArguments);

}  // namespace kernelpair
