// What the kernel of fp8_to_float takes. Contract: docs/contracts/fp8_to_float.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct Fp8ToFloatArguments {
  const View& codes;  // [..., K] f8e4m3, of any strides
  const View& out;    // [rows of codes, K], contiguous
};
KP_KERNEL(fp8_to_float, Fp8ToFloatArguments);

}  // namespace kernelpair
