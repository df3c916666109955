// act_and_mul: checks and registration. Contract: docs/contracts/act_and_mul.md.
#include "kernels/act_and_mul.h"

#include "core/operator.h"

namespace kernelpair {
namespace {

Activation activation_of(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  KP_CHECK_VALUE(name == "gelu_tanh", "activation = '", name, "' is none of silu, gelu, gelu_tanh");
  return Activation::gelu_tanh;
}

Tensor act_and_mul(const Tensor& x_in, std::string activation) {
  const View x = view_of("x", x_in);
  KP_CHECK_VALUE(x.dim >= 1 && x.dim <= kMostRowDims, "x must have 1 to 4 dimensions, got shape ",
                 shape_of(x));
  check_float({"x", x});
  check_dense_last_dim({"x", x});
  int64_t sizes[kMostRowDims];
  for (int d = 0; d < x.dim; ++d) sizes[d] = x.sizes[d];
  int64_t& last = sizes[x.dim - 1];
  KP_CHECK_VALUE(last % 2 == 0, "the last dimension of x must be even, got ", last);
  last /= 2;
  const Activation wanted = activation_of(activation);
  Tensor out = new_tensor(sizes, x.dim, x.dtype);
  kernels::act_and_mul({.x = rows_of(x), .out = rows_of(view_of("out", out)), .activation = wanted});
  return out;
}

}  // namespace

KP_OPERATOR(act_and_mul, "(Tensor x, str activation=\"silu\") -> Tensor",
            "x.new_empty((*x.shape[:-1], x.shape[-1] // 2))");

}  // namespace kernelpair
