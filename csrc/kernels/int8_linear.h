// What the kernel of int8_linear and int8_matmul takes. Contract: docs/contracts/int8_linear.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct Int8LinearArguments {
  const View& x;           // [..., K], dense in K: rows of floats to be quantized, or of i8
  bool symmetric;          // how rows of floats are
  const View &scale, azp;  // [M] f32 and [M] i32 of rows of i8; azp may be absent
  const View &data, sums;  // as pack_int8_weight leaves them
  const View& w_scale;     // [N] f32
  const View& bias;        // [N], may be absent
  const View& out;         // [M, N], contiguous
};
KP_KERNEL(int8_linear, Int8LinearArguments);

}  // namespace kernelpair
