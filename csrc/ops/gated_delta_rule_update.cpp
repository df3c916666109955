// gated_delta_rule_update: checks and registration. Contract: docs/contracts/gated_delta_rule_update.md.
#include <cmath>

#include "core/operator.h"
#include "kernels/gated_delta_rule_update.h"

namespace kernelpair {
namespace {

Tensor gated_delta_rule_update(const Tensor& A_log_in, const Tensor& dt_bias_in, const Tensor& q_in,
                               const Tensor& k_in, const Tensor& v_in, const Tensor& a_in, const Tensor& b_in,
                               const Tensor& state_in, const Tensor& state_indices_in,
                               const std::string& state_layout, bool use_qk_l2norm, double eps,
                               std::optional<double> scale_in, double softplus_beta,
                               double softplus_threshold, std::optional<int64_t> pad_slot) {
  const View A_log = view_of("A_log", A_log_in), dt_bias = view_of("dt_bias", dt_bias_in),
             q = view_of("q", q_in);
  const View k = view_of("k", k_in), v = view_of("v", v_in), a = view_of("a", a_in), b = view_of("b", b_in);
  const View state = view_of("state", state_in), state_indices = view_of("state_indices", state_indices_in);
  for (Arg arg : {Arg{"q", q}, Arg{"k", k}, Arg{"v", v}}) check_rank(arg, 3);
  for (Arg arg : {Arg{"a", a}, Arg{"b", b}}) check_rank(arg, 2);
  check_rank({"state", state}, 4);
  check_float({"q", q});
  check_same_dtype({"q", q}, {{"k", k}, {"v", v}, {"a", a}, {"b", b}});
  check_dtype({"state", state}, {Dtype::f32, Dtype::bf16});
  const int64_t B = q.sizes[0], HK = q.sizes[1], K = q.sizes[2], HV = v.sizes[1], V = v.sizes[2];
  KP_CHECK_VALUE(HK >= 1 && K >= 1 && V >= 1 && HV >= 1 && HV % HK == 0, "v has ", HV, " heads of ", V,
                 ", q has ", HK, " of ", K, ": need at least one, and a multiple of q's heads");
  check_shape({"k", k}, {B, HK, K});
  check_shape({"v", v}, {B, HV, V});
  check_shape({"a", a}, {B, HV});
  check_shape({"b", b}, {B, HV});
  check_parameter_vector({"A_log", A_log}, HV, q.dtype);
  check_parameter_vector({"dt_bias", dt_bias}, HV, q.dtype);
  KP_CHECK_VALUE(state_layout == "kv" || state_layout == "vk", "state_layout must be 'kv' or 'vk', got '",
                 state_layout, "'");
  const bool vk = state_layout == "vk";
  check_shape({"state", state}, {state.sizes[0], HV, vk ? V : K, vk ? K : V});
  for (Arg arg : {Arg{"q", q}, Arg{"k", k}, Arg{"v", v}, Arg{"state", state}}) check_dense_last_dim(arg);
  const double scale = scale_in.value_or(1 / std::sqrt(static_cast<double>(K)));
  check_positive("scale", scale);
  check_positive("eps", eps);
  check_positive("softplus_beta", softplus_beta);
  KP_CHECK_VALUE(!std::isnan(softplus_threshold), "softplus_threshold must not be NaN");
  check_index_dtype({"state_indices", state_indices});
  check_shape({"state_indices", state_indices}, {B});
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_indices_in_range({"state_indices", state_indices}, state.sizes[0], pad);
  check_no_duplicates({"state_indices", state_indices}, pad);
  check_disjoint({{"state", state}}, {{"A_log", A_log},
                                      {"dt_bias", dt_bias},
                                      {"q", q},
                                      {"k", k},
                                      {"v", v},
                                      {"a", a},
                                      {"b", b},
                                      {"state_indices", state_indices}});
  Tensor o = new_tensor({B, HV, V}, q.dtype);
  kernels::gated_delta_rule_update({.A_log = A_log,
                                    .dt_bias = dt_bias,
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .o = view_of("o", o),
                                    .a = a,
                                    .b = b,
                                    .state = state,
                                    .state_indices = state_indices,
                                    .vk = vk,
                                    .l2norm = use_qk_l2norm,
                                    .eps = static_cast<float>(eps),
                                    .scale = static_cast<float>(scale),
                                    .softplus_beta = static_cast<float>(softplus_beta),
                                    .softplus_threshold = static_cast<float>(softplus_threshold),
                                    .has_pad = pad.given,
                                    .pad_slot = pad.slot});
  return o;
}

}  // namespace

KP_OPERATOR(
    gated_delta_rule_update,
    "(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor(a!) state, "
    "Tensor state_indices, str state_layout=\"kv\", bool use_qk_l2norm=True, float eps=1e-5, float? "
    "scale=None, "
    "float softplus_beta=1.0, float softplus_threshold=20.0, int? pad_slot=None) -> Tensor",
    "v.new_empty(v.shape)");

}  // namespace kernelpair
