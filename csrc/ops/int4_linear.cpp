// int4_linear: checks and registration. Contract: docs/contracts/int4_linear.md.
#include "kernels/int4_linear.h"
#include "linear/call_rows.h"
#include "linear/int4_weight.h"

namespace kernelpair {
namespace {

Tensor int4_linear(const Tensor& x_in, const Tensor& data_in, const Tensor& scales_in, const Tensor& zeros_in,
                   int64_t N, int64_t K, int64_t group_size, const std::optional<Tensor>& bias_in,
                   const std::string& activation) {
  const View data = view_of("data", data_in), scales = view_of("scales", scales_in),
             zeros = view_of("zeros", zeros_in), bias = view_of("bias", bias_in);
  const int64_t size =
      check_int4_weight({"data", data}, {"scales", scales}, {"zeros", zeros}, N, K, group_size);
  KP_CHECK_VALUE(activation == "x" || activation == "int8", "activation must be 'x' or 'int8', got '",
                 activation, "'");
  const CallRows rows(x_in, N, K);
  check_float({"x", rows.x});
  check_linear_bias(bias, N);
  Tensor out = rows.new_result(rows.x.dtype);
  kernels::int4_linear({.x = rows.x,
                        .data = data,
                        .scales = scales,
                        .zeros = zeros,
                        .group_size = size,
                        .bytes = activation == "int8",
                        .bias = bias,
                        .out = rows.rows_of(out, rows.x.dtype)});
  return out;
}

}  // namespace

KP_OPERATOR(int4_linear,
            "(Tensor x, Tensor data, Tensor scales, Tensor zeros, int N, int K, int group_size, "
            "Tensor? bias=None, str activation=\"x\") -> Tensor",
            "x.new_empty((*x.shape[:-1], N))");

}  // namespace kernelpair
