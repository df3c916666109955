// int8_matmul and int8_linear: checks and registration. Contract: docs/contracts/int8_linear.md.
#include "kernels/int8_linear.h"
#include "linear/call_rows.h"
#include "linear/int8_weight.h"

namespace kernelpair {
namespace {

struct Weight {
  View data, sums, w_scale, bias;

  Weight(const Tensor& data_in, const Tensor& sums_in, int64_t N, int64_t K, const Tensor& w_scale_in,
         const std::optional<Tensor>& bias_in)
      : data(view_of("data", data_in)),
        sums(view_of("sums", sums_in)),
        w_scale(view_of("w_scale", w_scale_in)),
        bias(view_of("bias", bias_in)) {
    check_int8_weight({"data", data}, N, K);
    check_dtype({"sums", sums}, {Dtype::i32});
    check_shape({"sums", sums}, {N});
    check_dtype({"w_scale", w_scale}, {Dtype::f32});
    check_shape({"w_scale", w_scale}, {N});
    check_linear_bias(bias, N);
  }
};

void check_rows(Arg q, Arg scale, Arg azp) {
  check_rank(q, 2);
  check_dtype(q, {Dtype::i8});
  check_dense_last_dim(q);
  const int64_t M = q.view.sizes[0];
  check_dtype(scale, {Dtype::f32});
  check_shape(scale, {M});
  if (!azp.view.defined) return;
  check_dtype(azp, {Dtype::i32});
  check_shape(azp, {M});
  // Bytes, as the quantizer's are: sums stay in 32 bits.
  for (int64_t m = 0; m < M; ++m) {
    const int64_t point = index_at(azp.view, m);
    KP_CHECK_VALUE(point >= INT8_MIN && point <= INT8_MAX, azp.name, "[", m, "] = ", point, " is outside [",
                   INT8_MIN, ", ", INT8_MAX, "]");
  }
}

Tensor int8_matmul(const Tensor& q_in, const Tensor& scale_in, const std::optional<Tensor>& azp_in,
                   const Tensor& data, const Tensor& sums, int64_t N, int64_t K, const Tensor& w_scale,
                   const std::optional<Tensor>& bias, ScalarType out_dtype) {
  const Weight weight(data, sums, N, K, w_scale, bias);
  const View q = view_of("q", q_in), scale = view_of("scale", scale_in), azp = view_of("azp", azp_in);
  check_rows({"q", q}, {"scale", scale}, {"azp", azp});
  KP_CHECK_VALUE(q.sizes[1] == K, "q must have K = ", K, " columns, got shape ", shape_of(q));
  const Dtype dtype = float_dtype_of("out_dtype", out_dtype);
  Tensor out = new_tensor({q.sizes[0], N}, dtype);
  kernels::int8_linear({.x = q,
                        .symmetric = true,
                        .scale = scale,
                        .azp = azp,
                        .data = weight.data,
                        .sums = weight.sums,
                        .w_scale = weight.w_scale,
                        .bias = weight.bias,
                        .out = view_of("out", out)});
  return out;
}

Tensor int8_linear(const Tensor& x_in, const Tensor& data, const Tensor& sums, int64_t N, int64_t K,
                   const Tensor& w_scale, const std::optional<Tensor>& bias, bool symmetric) {
  const Weight weight(data, sums, N, K, w_scale, bias);
  const CallRows rows(x_in, N, K);
  check_float({"x", rows.x});
  KP_CHECK_VALUE(rows.dense, "x must be dense in its last dimension");
  Tensor out = rows.new_result(rows.x.dtype);
  const View none;
  kernels::int8_linear({.x = rows.x,
                        .symmetric = symmetric,
                        .scale = none,
                        .azp = none,
                        .data = weight.data,
                        .sums = weight.sums,
                        .w_scale = weight.w_scale,
                        .bias = weight.bias,
                        .out = rows.rows_of(out, rows.x.dtype)});
  return out;
}

}  // namespace

KP_OPERATOR(int8_matmul,
            "(Tensor q, Tensor scale, Tensor? azp, Tensor data, Tensor sums, int N, int K, Tensor w_scale, "
            "Tensor? bias, ScalarType out_dtype) -> Tensor",
            "q.new_empty((q.shape[0], N), dtype=out_dtype)");
KP_OPERATOR(int8_linear,
            "(Tensor x, Tensor data, Tensor sums, int N, int K, Tensor w_scale, Tensor? bias=None, "
            "bool symmetric=True) -> Tensor",
            "x.new_empty((*x.shape[:-1], N))");

}  // namespace kernelpair
