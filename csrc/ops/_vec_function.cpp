// _vec_function: one elementary function of the vector layer on every element of x, for the tests of its
// accuracy.
#include "kernels/_vec_function.h"
#include "core/operator.h"

namespace kernelpair {
namespace {

// VecFunction.
constexpr const char* kFunctions[] = {"identity", "exp",      "exp2",      "tanh",      "sigmoid",
                                      "silu",     "softplus", "transpose", "round_wide"};

// x contiguous, of any float dtype (identity converts and rounds back, the others return f32). transpose
// swaps the two dimensions of each 16 x 16 group of elements, round_wide rounds each 32 floats to bf16.
Tensor _vec_function(const std::string& function, const Tensor& x_in, bool widen) {
  const View x = view_of("x", x_in);
  check_float({"x", x});
  check_rank({"x", x}, 1);
  check_contiguous({"x", x});
  int64_t number = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(std::size(kFunctions)); ++i)
    if (function == kFunctions[i]) number = i;
  KP_CHECK_VALUE(number >= 0, "there is no function '", function, "'");
  if (function == "transpose" || function == "round_wide") check_dtype({"x", x}, {Dtype::f32});
  Tensor out = new_tensor(x.sizes, 1, widen ? Dtype::f32 : x.dtype);
  kernels::_vec_function({.x = x, .out = view_of("out", out), .function = static_cast<VecFunction>(number)});
  return out;
}

}  // namespace

KP_OPERATOR(_vec_function, "(str function, Tensor x, bool widen) -> Tensor",
            "torch.empty_like(x, dtype=torch.float32 if widen else None)");

}  // namespace kernelpair
