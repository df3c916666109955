// quantize_rows_int8: checks and registration. Contract: docs/contracts/quantize_rows_int8.md.
#include "kernels/quantize_rows_int8.h"
#include "core/operator.h"

namespace kernelpair {
namespace {

// Without zero points the third result is empty: the Python face makes None of it.
std::tuple<Tensor, Tensor, Tensor> quantize_rows_int8(const Tensor& x_in, bool symmetric) {
  const View x = view_of("x", x_in);
  check_rank({"x", x}, 2);
  check_float({"x", x});
  check_dense_last_dim({"x", x});
  const int64_t M = x.sizes[0], K = x.sizes[1];
  Tensor q = new_tensor({M, K}, Dtype::i8), scale = new_tensor({M}, Dtype::f32);
  Tensor azp = new_tensor({symmetric ? 0 : M}, Dtype::i32);
  View zero_points = view_of("azp", azp);
  zero_points.defined = !symmetric;
  kernels::quantize_rows_int8(
      {.x = x, .q = view_of("q", q), .scale = view_of("scale", scale), .azp = zero_points});
  return {std::move(q), std::move(scale), std::move(azp)};
}

}  // namespace

KP_OPERATOR(quantize_rows_int8, "(Tensor x, bool symmetric=True) -> (Tensor, Tensor, Tensor)",
            "(x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:1], dtype=torch.float32), "
            "x.new_empty((0,) if symmetric else x.shape[:1], dtype=torch.int32))");

}  // namespace kernelpair
