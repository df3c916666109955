// packed_linear: checks and registration. Contract: docs/contracts/packed_linear.md.
#include "kernels/packed_linear.h"
#include "linear/call_rows.h"
#include "linear/packed_weight.h"

namespace kernelpair {
namespace {

Tensor packed_linear(const Tensor& x_in, const Tensor& packed_weight, int64_t N, int64_t K,
                     const std::optional<Tensor>& bias_in) {
  const View packed = view_of("packed_weight", packed_weight), bias = view_of("bias", bias_in);
  check_packed_weight({"packed_weight", packed}, N, K);
  const CallRows rows(x_in, N, K);
  const View& x = rows.x;
  check_float({"x", x});
  check_same_dtype({"packed_weight", packed}, {{"x", x}});
  check_linear_bias(bias, N);
  Tensor out = rows.new_result(x.dtype);
  kernels::packed_linear({.x = x, .packed_weight = packed, .bias = bias, .out = rows.rows_of(out, x.dtype)});
  return out;
}

}  // namespace

KP_OPERATOR(packed_linear, "(Tensor x, Tensor packed_weight, int N, int K, Tensor? bias=None) -> Tensor",
            "x.new_empty((*x.shape[:-1], N))");

}  // namespace kernelpair
