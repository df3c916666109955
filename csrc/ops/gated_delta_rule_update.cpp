// gated_delta_rule_update: checks and registration. Contracts:
// docs/contracts/gated_delta_rule_update.md, docs/contracts/gated_delta_rule_update_spec.md.
#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "kernels/gated_delta_rule_update.h"

namespace kernelpair {
namespace {

// The tensors of one token each; B counts tokens.
struct Step {
  const View &A_log, &dt_bias, &q, &k, &v, &a, &b, &state;
};

struct Scalars {
  bool vk, l2norm;
  double eps, scale, softplus_beta, softplus_threshold;
};

// What a single token and drafts share.
Scalars check_step(const Step& step, const std::string& state_layout, bool l2norm, double eps,
                   std::optional<double> scale_in, double softplus_beta, double softplus_threshold) {
  const auto& [A_log, dt_bias, q, k, v, a, b, state] = step;
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
  return {vk, l2norm, eps, scale, softplus_beta, softplus_threshold};
}

void check_apart_from_state(const Step& step, std::initializer_list<Arg> indices) {
  const auto& [A_log, dt_bias, q, k, v, a, b, state] = step;
  check_disjoint({{"state", state}},
                 {{"A_log", A_log}, {"dt_bias", dt_bias}, {"q", q}, {"k", k}, {"v", v}, {"a", a}, {"b", b}});
  check_disjoint({{"state", state}}, indices);
}

Tensor run(const Step& step, const Scalars& scalars, const View& state_indices,
           const View& num_accepted_tokens, const View& query_start_loc, Pad pad) {
  const auto& [A_log, dt_bias, q, k, v, a, b, state] = step;
  Tensor o = new_tensor({v.sizes[0], v.sizes[1], v.sizes[2]}, q.dtype);
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
                                    .num_accepted_tokens = num_accepted_tokens,
                                    .query_start_loc = query_start_loc,
                                    .vk = scalars.vk,
                                    .l2norm = scalars.l2norm,
                                    .eps = static_cast<float>(scalars.eps),
                                    .scale = static_cast<float>(scalars.scale),
                                    .softplus_beta = static_cast<float>(scalars.softplus_beta),
                                    .softplus_threshold = static_cast<float>(scalars.softplus_threshold),
                                    .has_pad = pad.given,
                                    .pad_slot = pad.slot});
  return o;
}

Tensor gated_delta_rule_update(const Tensor& A_log_in, const Tensor& dt_bias_in, const Tensor& q_in,
                               const Tensor& k_in, const Tensor& v_in, const Tensor& a_in, const Tensor& b_in,
                               const Tensor& state_in, const Tensor& state_indices_in,
                               const std::string& state_layout, bool use_qk_l2norm, double eps,
                               std::optional<double> scale_in, double softplus_beta,
                               double softplus_threshold, std::optional<int64_t> pad_slot) {
  const View A_log = view_of("A_log", A_log_in), dt_bias = view_of("dt_bias", dt_bias_in);
  const View q = view_of("q", q_in), k = view_of("k", k_in), v = view_of("v", v_in), a = view_of("a", a_in);
  const View b = view_of("b", b_in), state = view_of("state", state_in);
  const View state_indices = view_of("state_indices", state_indices_in);
  const Step step{A_log, dt_bias, q, k, v, a, b, state};
  const Scalars scalars =
      check_step(step, state_layout, use_qk_l2norm, eps, scale_in, softplus_beta, softplus_threshold);
  check_index_dtype({"state_indices", state_indices});
  check_shape({"state_indices", state_indices}, {q.sizes[0]});
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_indices_in_range({"state_indices", state_indices}, state.sizes[0], pad);
  check_no_duplicates({"state_indices", state_indices}, pad);
  check_apart_from_state(step, {{"state_indices", state_indices}});
  return run(step, scalars, state_indices, View{}, View{}, pad);
}

// Which slots drafts read and write: each is written once at most, and by nobody but its reader if it is read.
void check_drafts(const View& state_indices, const View& accepted, const View& starts, int64_t slots,
                  Pad pad) {
  const int64_t requests = state_indices.sizes[0], columns = state_indices.sizes[1];
  std::unordered_map<int64_t, int64_t> writers;
  std::vector<std::pair<int64_t, int64_t>> reads;  // slot, request
  const auto slot_at = [&](int64_t b, int64_t column) {
    const int64_t slot = index_at(state_indices, b, column);
    KP_CHECK_INDEX(slot >= 0 && slot < slots, "state_indices[", b, ", ", column, "] = ", slot,
                   " is outside [0, ", slots, ")");
    return slot;
  };
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t tokens = index_at(starts, b + 1) - index_at(starts, b);
    if (tokens == 0) continue;
    KP_CHECK_VALUE(tokens <= columns, "state_indices has ", columns, " columns, request ", b, " has ", tokens,
                   " tokens");
    if (pad.given && index_at(state_indices, b, 0) == pad.slot) continue;
    const int64_t count = index_at(accepted, b);
    KP_CHECK_VALUE(count >= 1 && count <= columns, "num_accepted_tokens[", b, "] = ", count,
                   " is outside [1, ", columns, "]");
    reads.emplace_back(slot_at(b, count - 1), b);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t slot = slot_at(b, i);
      KP_CHECK_VALUE(writers.emplace(slot, b).second, "state_indices holds slot ", slot, " more than once");
    }
  }
  for (const auto& [slot, reader] : reads) {
    const auto writer = writers.find(slot);
    KP_CHECK_VALUE(writer == writers.end() || writer->second == reader, "state_indices: request ",
                   writer->second, " writes slot ", slot, ", which request ", reader, " reads");
  }
}

Tensor gated_delta_rule_update_spec(const Tensor& A_log_in, const Tensor& dt_bias_in, const Tensor& q_in,
                                    const Tensor& k_in, const Tensor& v_in, const Tensor& a_in,
                                    const Tensor& b_in, const Tensor& state_in,
                                    const Tensor& state_indices_in, const Tensor& num_accepted_tokens_in,
                                    const Tensor& query_start_loc_in, const std::string& state_layout,
                                    bool use_qk_l2norm, double eps, std::optional<double> scale_in,
                                    double softplus_beta, double softplus_threshold,
                                    std::optional<int64_t> pad_slot) {
  const View A_log = view_of("A_log", A_log_in), dt_bias = view_of("dt_bias", dt_bias_in);
  const View q = view_of("q", q_in), k = view_of("k", k_in), v = view_of("v", v_in), a = view_of("a", a_in);
  const View b = view_of("b", b_in), state = view_of("state", state_in);
  const View state_indices = view_of("state_indices", state_indices_in);
  const View accepted = view_of("num_accepted_tokens", num_accepted_tokens_in);
  const View starts = view_of("query_start_loc", query_start_loc_in);
  const Step step{A_log, dt_bias, q, k, v, a, b, state};
  const Scalars scalars =
      check_step(step, state_layout, use_qk_l2norm, eps, scale_in, softplus_beta, softplus_threshold);
  check_index_dtype({"query_start_loc", starts});
  check_offsets({"query_start_loc", starts}, q.sizes[0]);
  const int64_t requests = starts.sizes[0] - 1;
  check_rank({"state_indices", state_indices}, 2);
  check_index_dtype({"state_indices", state_indices});
  check_shape({"state_indices", state_indices}, {requests, state_indices.sizes[1]});
  check_index_dtype({"num_accepted_tokens", accepted});
  check_shape({"num_accepted_tokens", accepted}, {requests});
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_drafts(state_indices, accepted, starts, state.sizes[0], pad);
  check_apart_from_state(
      step,
      {{"state_indices", state_indices}, {"num_accepted_tokens", accepted}, {"query_start_loc", starts}});
  return run(step, scalars, state_indices, accepted, starts, pad);
}

}  // namespace

KP_OPERATOR(
    gated_delta_rule_update,
    "(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor(a!) state, "
    "Tensor state_indices, str state_layout=\"kv\", bool use_qk_l2norm=True, float eps=1e-5, float? "
    "scale=None, "
    "float softplus_beta=1.0, float softplus_threshold=20.0, int? pad_slot=None) -> Tensor",
    "v.new_empty(v.shape)");
KP_OPERATOR(
    gated_delta_rule_update_spec,
    "(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor(a!) state, "
    "Tensor state_indices, Tensor num_accepted_tokens, Tensor query_start_loc, str state_layout=\"kv\", bool "
    "use_qk_l2norm=True, float eps=1e-5, float? scale=None, float softplus_beta=1.0, float "
    "softplus_threshold=20.0, int? pad_slot=None) -> Tensor",
    "v.new_empty(v.shape)");

}  // namespace kernelpair
