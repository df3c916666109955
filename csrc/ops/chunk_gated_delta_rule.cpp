// chunk_gated_delta_rule and its pool form: checks and registration. Contract:
// docs/contracts/chunk_gated_delta_rule.md.
#include <cmath>

#include "core/operator.h"
#include "kernels/chunk_gated_delta_rule.h"

namespace kernelpair {
namespace {

struct Inputs {
  View q, k, v, g, beta, cu_seqlens;
  bool value_major, l2norm;
  double eps, scale;
  bool accurate;
};

Inputs check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                    const Tensor& cu_seqlens, const std::string& state_layout, bool use_qk_l2norm, double eps,
                    std::optional<double> scale, bool accurate) {
  Inputs in = {.q = view_of("q", q),
               .k = view_of("k", k),
               .v = view_of("v", v),
               .g = view_of("g", g),
               .beta = view_of("beta", beta),
               .cu_seqlens = view_of("cu_seqlens", cu_seqlens),
               .value_major = state_layout == "vk",
               .l2norm = use_qk_l2norm,
               .eps = eps,
               .scale = 0,
               .accurate = accurate};
  check_dense(3, {{"q", in.q}, {"k", in.k}, {"v", in.v}});
  check_float({"q", in.q});
  check_same_dtype({"q", in.q}, {{"k", in.k}, {"v", in.v}});
  const int64_t T = in.q.sizes[0], HK = in.q.sizes[1], K = in.q.sizes[2], HV = in.v.sizes[1],
                V = in.v.sizes[2];
  check_shape({"k", in.k}, {T, HK, K});
  check_shape({"v", in.v}, {T, HV, V});
  KP_CHECK_VALUE(HK > 0 && HV > 0 && K > 0 && V > 0 && HV % HK == 0,
                 "v needs a multiple of q's heads and no empty head, got q ", shape_of(in.q), ", v ",
                 shape_of(in.v));
  check_dtype({"g", in.g}, {Dtype::f32});
  check_dtype({"beta", in.beta}, {in.q.dtype, Dtype::f32});
  check_shape({"g", in.g}, {T, HV});
  check_shape({"beta", in.beta}, {T, HV});
  check_rank({"cu_seqlens", in.cu_seqlens}, 1);
  check_index_dtype({"cu_seqlens", in.cu_seqlens});
  check_offsets({"cu_seqlens", in.cu_seqlens}, T);
  KP_CHECK_VALUE(in.value_major || state_layout == "kv", "state_layout must be one of kv, vk, got '",
                 state_layout, "'");
  in.scale = scale.value_or(1 / std::sqrt(static_cast<double>(K)));
  check_positive("scale", in.scale);
  check_positive("eps", eps);
  return in;
}

// A state of `rows` slots or sequences.
void check_state(Arg state, const Inputs& in, int64_t rows) {
  const int64_t HV = in.v.sizes[1], K = in.q.sizes[2], V = in.v.sizes[2];
  check_rank(state, 4);
  check_dtype(state, {Dtype::f32, Dtype::bf16});
  check_shape(state, {rows, HV, in.value_major ? V : K, in.value_major ? K : V});
  check_dense_last_dim(state);
}

// Where states come from and go to, each of which may be absent but the final ones.
struct States {
  const View &initial, &final, &indices, &has_initial;
};

void run(const Inputs& in, const States& states, Pad pad, const View& out) {
  kernels::chunk_gated_delta_rule({.q = in.q,
                                   .k = in.k,
                                   .v = in.v,
                                   .out = out,
                                   .g = in.g,
                                   .beta = in.beta,
                                   .initial_state = states.initial,
                                   .final_state = states.final,
                                   .state_indices = states.indices,
                                   .has_initial_state = states.has_initial,
                                   .cu_seqlens = in.cu_seqlens,
                                   .value_major = in.value_major,
                                   .l2norm = in.l2norm,
                                   .eps = static_cast<float>(in.eps),
                                   .scale = static_cast<float>(in.scale),
                                   .has_pad = pad.given,
                                   .pad_slot = pad.slot,
                                   .accurate = in.accurate});
}

std::tuple<Tensor, Tensor> chunk_gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& g, const Tensor& beta,
                                                  std::optional<Tensor> initial_state_in,
                                                  const Tensor& cu_seqlens, std::string state_layout,
                                                  bool use_qk_l2norm, double eps, std::optional<double> scale,
                                                  bool accurate) {
  const Inputs in =
      check_inputs(q, k, v, g, beta, cu_seqlens, state_layout, use_qk_l2norm, eps, scale, accurate);
  const View initial_state = view_of("initial_state", initial_state_in);
  const int64_t N = in.cu_seqlens.sizes[0] - 1, HV = in.v.sizes[1], K = in.q.sizes[2], V = in.v.sizes[2];
  if (initial_state.defined) check_state({"initial_state", initial_state}, in, N);

  Tensor out = new_tensor({in.v.sizes[0], HV, V}, in.q.dtype);
  Tensor final_state = new_tensor({N, HV, in.value_major ? V : K, in.value_major ? K : V},
                                  initial_state.defined ? initial_state.dtype : Dtype::f32);
  run(in,
      {.initial = initial_state,
       .final = view_of("final_state", final_state),
       .indices = View{},
       .has_initial = View{}},
      {}, view_of("out", out));
  return {std::move(out), std::move(final_state)};
}

Tensor chunk_gated_delta_rule_pool(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                   const Tensor& beta, const Tensor& state_in, const Tensor& state_indices_in,
                                   std::optional<Tensor> has_initial_state_in, const Tensor& cu_seqlens,
                                   std::string state_layout, bool use_qk_l2norm, double eps,
                                   std::optional<double> scale, std::optional<int64_t> pad_slot,
                                   bool accurate) {
  const Inputs in =
      check_inputs(q, k, v, g, beta, cu_seqlens, state_layout, use_qk_l2norm, eps, scale, accurate);
  const View state = view_of("state", state_in), state_indices = view_of("state_indices", state_indices_in);
  const View has_initial_state = view_of("has_initial_state", has_initial_state_in);
  const int64_t N = in.cu_seqlens.sizes[0] - 1;
  check_state({"state", state}, in, state.sizes[0]);
  check_index_dtype({"state_indices", state_indices});
  check_shape({"state_indices", state_indices}, {N});
  if (has_initial_state.defined) {
    check_dtype({"has_initial_state", has_initial_state}, {Dtype::b8});
    check_shape({"has_initial_state", has_initial_state}, {N});
  }
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_written_slots({"state_indices", state_indices}, state.sizes[0], pad,
                      [&](int64_t n) { return index_at(in.cu_seqlens, n + 1) > index_at(in.cu_seqlens, n); });
  check_disjoint({{"state", state}}, {{"q", in.q},
                                      {"k", in.k},
                                      {"v", in.v},
                                      {"g", in.g},
                                      {"beta", in.beta},
                                      {"state_indices", state_indices},
                                      {"has_initial_state", has_initial_state},
                                      {"cu_seqlens", in.cu_seqlens}});

  Tensor out = new_tensor({in.v.sizes[0], in.v.sizes[1], in.v.sizes[2]}, in.q.dtype);
  const View initial_state = has_initial_state.defined ? state : View{};
  run(in,
      {.initial = initial_state, .final = state, .indices = state_indices, .has_initial = has_initial_state},
      pad, view_of("out", out));
  return out;
}

}  // namespace

KP_OPERATOR(chunk_gated_delta_rule,
            "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state, Tensor cu_seqlens, "
            "str state_layout=\"kv\", bool use_qk_l2norm=True, float eps=1e-5, float? scale=None, bool "
            "accurate=False) -> "
            "(Tensor, Tensor)",
            "(v.new_empty(v.shape, dtype=q.dtype), q.new_empty((len(cu_seqlens) - 1, v.shape[1]) + "
            "((q.shape[2], v.shape[2]) if state_layout == 'kv' else (v.shape[2], q.shape[2])), "
            "dtype=torch.float32 if initial_state is None else initial_state.dtype))");
KP_OPERATOR(chunk_gated_delta_rule_pool,
            "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor(a!) state, Tensor state_indices, "
            "Tensor? has_initial_state, Tensor cu_seqlens, str state_layout=\"kv\", bool use_qk_l2norm=True, "
            "float eps=1e-5, float? scale=None, int? pad_slot=None, bool accurate=False) -> Tensor",
            "v.new_empty(v.shape)");

}  // namespace kernelpair
