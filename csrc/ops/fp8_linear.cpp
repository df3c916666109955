// fp8_linear: checks and registration. Contract: docs/contracts/fp8_linear.md.
#include "kernels/fp8_linear.h"
#include "linear/call_rows.h"
#include "linear/fp8_weight.h"

namespace kernelpair {
namespace {

Tensor fp8_linear(const Tensor& x_in, const Tensor& data_in, const Tensor& scales_in, int64_t N, int64_t K,
                  int64_t block_n, int64_t block_k, const std::optional<Tensor>& bias_in) {
  const View data = view_of("data", data_in), scales = view_of("scales", scales_in),
             bias = view_of("bias", bias_in);
  check_fp8_weight({"data", data}, N, K);
  check_block_scales({"scales", scales}, N, K, block_n, block_k);
  const CallRows rows(x_in, N, K);
  check_float({"x", rows.x});
  check_linear_bias(bias, N);
  Tensor out = rows.new_result(rows.x.dtype);
  const View out_rows = rows.rows_of(out, rows.x.dtype);
  kernels::fp8_linear({.x = rows.x,
                       .data = data,
                       .scales = scales,
                       .block_n = block_n,
                       .block_k = block_k,
                       .bias = bias,
                       .out = out_rows},
                      work_of_rows(out_rows.sizes[0]));
  return out;
}

}  // namespace

KP_OPERATOR(fp8_linear,
            "(Tensor x, Tensor data, Tensor scales, int N, int K, int block_n, int block_k, "
            "Tensor? bias=None) -> Tensor",
            "x.new_empty((*x.shape[:-1], N))");

}  // namespace kernelpair
