// merge_state: checks and registration. Contract: docs/contracts/merge_state.md.
#include "kernels/merge_state.h"

#include <cmath>

#include "core/operator.h"

namespace kernelpair {
namespace {

void check_lse(Arg lse, int64_t tokens, int64_t heads) {
  check_rank(lse, 2);
  check_dtype(lse, {Dtype::f32});
  check_shape(lse, {tokens, heads});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const float value = *at<float>(lse.view, t, h);
      KP_CHECK_VALUE(value < INFINITY, lse.name, "[", t, ", ", h, "] = ", value,
                     " is no logarithm of a sum: it must be finite, or -inf for a part without keys");
    }
}

std::tuple<Tensor, Tensor> merge_state(const Tensor& v_a_in, const Tensor& lse_a_in, const Tensor& v_b_in,
                                       const Tensor& lse_b_in) {
  const View v_a = view_of("v_a", v_a_in), lse_a = view_of("lse_a", lse_a_in), v_b = view_of("v_b", v_b_in);
  const View lse_b = view_of("lse_b", lse_b_in);
  check_rank({"v_a", v_a}, 3);
  check_float({"v_a", v_a});
  check_same_dtype({"v_a", v_a}, {{"v_b", v_b}});
  const int64_t T = v_a.sizes[0], H = v_a.sizes[1], Dv = v_a.sizes[2];
  check_shape({"v_b", v_b}, {T, H, Dv});
  check_dense_last_dim({"v_a", v_a});
  check_dense_last_dim({"v_b", v_b});
  check_lse({"lse_a", lse_a}, T, H);
  check_lse({"lse_b", lse_b}, T, H);
  Tensor out = new_tensor({T, H, Dv}, v_a.dtype), lse = new_tensor({T, H}, Dtype::f32);
  kernels::merge_state({.v_a = v_a,
                        .v_b = v_b,
                        .lse_a = lse_a,
                        .lse_b = lse_b,
                        .out = view_of("out", out),
                        .lse = view_of("lse", lse)});
  return {std::move(out), std::move(lse)};
}

}  // namespace

KP_OPERATOR(merge_state, "(Tensor v_a, Tensor lse_a, Tensor v_b, Tensor lse_b) -> (Tensor, Tensor)",
            "(v_a.new_empty(v_a.shape), lse_a.new_empty(lse_a.shape))");

}  // namespace kernelpair
