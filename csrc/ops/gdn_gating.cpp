// gdn_gating: checks and registration. Contract: docs/contracts/gdn_gating.md.
#include <cmath>

#include "core/operator.h"
#include "kernels/gdn_gating.h"

namespace kernelpair {
namespace {

std::tuple<Tensor, Tensor> gdn_gating(const Tensor& A_log_in, const Tensor& a_in, const Tensor& b_in,
                                      const Tensor& dt_bias_in, double softplus_beta,
                                      double softplus_threshold) {
  const View A_log = view_of("A_log", A_log_in), a = view_of("a", a_in), b = view_of("b", b_in);
  const View dt_bias = view_of("dt_bias", dt_bias_in);
  check_rank({"a", a}, 2);
  check_float({"a", a});
  check_same_dtype({"a", a}, {{"b", b}});
  const int64_t rows = a.sizes[0], heads = a.sizes[1];
  check_shape({"b", b}, {rows, heads});
  check_parameter_vector({"A_log", A_log}, heads, a.dtype);
  check_parameter_vector({"dt_bias", dt_bias}, heads, a.dtype);
  check_positive("softplus_beta", softplus_beta);
  KP_CHECK_VALUE(!std::isnan(softplus_threshold), "softplus_threshold must not be NaN");
  Tensor g = new_tensor({rows, heads}, Dtype::f32), beta = new_tensor({rows, heads}, b.dtype);
  kernels::gdn_gating({.A_log = A_log,
                       .dt_bias = dt_bias,
                       .a = a,
                       .b = b,
                       .g = view_of("g", g),
                       .beta = view_of("beta", beta),
                       .softplus_beta = static_cast<float>(softplus_beta),
                       .softplus_threshold = static_cast<float>(softplus_threshold)});
  return {std::move(g), std::move(beta)};
}

}  // namespace

KP_OPERATOR(gdn_gating,
            "(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias, float softplus_beta=1.0, float "
            "softplus_threshold=20.0) "
            "-> (Tensor, Tensor)",
            "(a.new_empty(a.shape, dtype=torch.float32), b.new_empty(b.shape))");

}  // namespace kernelpair
