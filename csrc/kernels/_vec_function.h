// What the kernel of _vec_function takes.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

enum class VecFunction { identity, exp, exp2, tanh, sigmoid, silu, softplus, transpose, round_wide };

struct VecFunctionArguments {
  const View& x;    // [n], of any float dtype
  const View& out;  // [n], f32 or the dtype of x
  VecFunction function;
};
KP_KERNEL(_vec_function, VecFunctionArguments);

}  // namespace kernelpair
