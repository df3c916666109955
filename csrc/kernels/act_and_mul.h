// What the kernel of act_and_mul takes. Contract: docs/contracts/act_and_mul.md.
#pragma once

#include "core/kernel.h"
#include "core/rows.h"

namespace kernelpair {

enum class Activation { silu, gelu, gelu_tanh };

struct ActAndMulArguments {  // as rows (core/rows.h)
  const View& x;             // of 2 d columns
  const View& out;           // of d columns
  Activation activation;
};
KP_KERNEL(act_and_mul, ActAndMulArguments);

}  // namespace kernelpair
