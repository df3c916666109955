// fused_moe and shared_expert: checks and registration. Contract: docs/contracts/fused_moe.md.
#include "kernels/fused_moe.h"

#include <cmath>

#include "core/operator.h"
#include "linear/packed_weight.h"

namespace kernelpair {
namespace {

// A stack of E packed weights [N, K], as pack_linear_weight leaves each, its last two dimensions as one.
void check_experts(Arg data, int64_t E, int64_t N, int64_t K) {
  check_rank(data, 6);
  KP_CHECK_VALUE(data.view.sizes[0] == E && E >= 1, data.name, " holds ", data.view.sizes[0],
                 " experts, expected ", E);
  const auto shape = packed_weight_shape(N, K, data.view.dtype);
  check_shape(data, {E, shape[0], shape[1], shape[2], shape[3], shape[4] * shape[5]});
  check_contiguous(data);
}

void check_bias(Arg bias, int64_t E, int64_t N, Dtype call_dtype) {
  if (!bias.view.defined) return;
  check_rank(bias, 2);
  check_shape(bias, {E, N});
  check_float(bias);
  KP_CHECK_TYPE(bias.view.dtype == call_dtype || bias.view.dtype == Dtype::f32, bias.name, " has dtype ",
                name_of(bias.view.dtype), ", expected x's or float32");
  check_dense_last_dim(bias);
}

// Tensors that a call views, all checked.
struct Experts {
  View x, w13, w2, b13, b2;
  int64_t E, D, inner;

  Experts(const Tensor& x_in, const Tensor& w13_in, const Tensor& w2_in, int64_t I,
          const std::optional<Tensor>& b13_in, const std::optional<Tensor>& b2_in)
      : x(view_of("x", x_in)),
        w13(view_of("w13", w13_in)),
        w2(view_of("w2", w2_in)),
        b13(view_of("b13", b13_in)),
        b2(view_of("b2", b2_in)),
        inner(I) {
    check_rank({"x", x}, 2);
    check_float({"x", x});
    check_dense_last_dim({"x", x});
    D = x.sizes[1];
    KP_CHECK_VALUE(D >= 1, "x must have a column, got shape ", shape_of(x));
    KP_CHECK_VALUE(inner >= 1 && inner <= INT64_MAX / 2, "I must be at least 1, got ", inner);
    check_same_dtype({"w13", w13}, {{"x", x}, {"w2", w2}});
    check_rank({"w13", w13}, 6);
    E = w13.sizes[0];
    check_experts({"w13", w13}, E, 2 * inner, D);
    check_experts({"w2", w2}, E, D, inner);
    check_bias({"b13", b13}, E, 2 * inner, x.dtype);
    check_bias({"b2", b2}, E, D, x.dtype);
  }
};

void check_routing(Arg weights, Arg ids, int64_t T, int64_t E, bool on_input) {
  check_rank(ids, 2);
  check_index_dtype(ids);
  const int64_t k = ids.view.sizes[1];
  check_shape(ids, {T, k});
  check_dtype(weights, {Dtype::f32});
  check_shape(weights, {T, k});
  KP_CHECK_VALUE(!on_input || k == 1, "apply_router_weight_on_input takes one expert a token, topk_ids has ",
                 k);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t j = 0; j < k; ++j) {
      const int64_t id = index_at(ids.view, t, j);
      KP_CHECK_INDEX(id >= -1 && id < E, ids.name, "[", t, ", ", j, "] = ", id, " is outside [0, ", E,
                     ") and not -1");
    }
}

Tensor fused_moe(const Tensor& x_in, const Tensor& w13, const Tensor& w2, int64_t I, const Tensor& weights_in,
                 const Tensor& ids_in, const std::optional<Tensor>& b13, const std::optional<Tensor>& b2,
                 bool apply_router_weight_on_input) {
  const Experts experts(x_in, w13, w2, I, b13, b2);
  const View weights = view_of("topk_weights", weights_in), ids = view_of("topk_ids", ids_in), none;
  const int64_t T = experts.x.sizes[0];
  check_routing({"topk_weights", weights}, {"topk_ids", ids}, T, experts.E, apply_router_weight_on_input);
  Tensor out = new_tensor({T, experts.D}, experts.x.dtype);
  kernels::fused_moe({.x = experts.x,
                      .w13 = {experts.w13, none, none, experts.b13},
                      .w2 = {experts.w2, none, none, experts.b2},
                      .inner = I,
                      .topk_weights = weights,
                      .topk_ids = ids,
                      .apply_router_weight_on_input = apply_router_weight_on_input,
                      .routed = none,
                      .routed_scaling_factor = 0,
                      .out = view_of("out", out)});
  return out;
}

Tensor shared_expert(const Tensor& x_in, const Tensor& w13, const Tensor& w2, int64_t I,
                     const std::optional<Tensor>& routed_in, double routed_scaling_factor) {
  const Experts experts(x_in, w13, w2, I, {}, {});
  KP_CHECK_VALUE(experts.E == 1, "w13 must hold one expert, got ", experts.E);
  const View routed = view_of("routed", routed_in), none;
  const int64_t T = experts.x.sizes[0];
  if (routed.defined) {
    check_same_dtype({"routed", routed}, {{"x", experts.x}});
    check_shape({"routed", routed}, {T, experts.D});
    check_dense_last_dim({"routed", routed});
    KP_CHECK_VALUE(std::isfinite(static_cast<float>(routed_scaling_factor)),
                   "routed_scaling_factor = ", routed_scaling_factor, " is not finite in float32");
  }
  Tensor out = new_tensor({T, experts.D}, experts.x.dtype);
  kernels::fused_moe({.x = experts.x,
                      .w13 = {experts.w13, none, none, none},
                      .w2 = {experts.w2, none, none, none},
                      .inner = I,
                      .topk_weights = none,
                      .topk_ids = none,
                      .apply_router_weight_on_input = false,
                      .routed = routed,
                      .routed_scaling_factor = static_cast<float>(routed_scaling_factor),
                      .out = view_of("out", out)});
  return out;
}

}  // namespace

KP_OPERATOR(
    fused_moe,
    "(Tensor x, Tensor w13, Tensor w2, int I, Tensor topk_weights, Tensor topk_ids, Tensor? b13=None, "
    "Tensor? b2=None, bool apply_router_weight_on_input=False) -> Tensor",
    "x.new_empty(x.shape)");
KP_OPERATOR(
    shared_expert,
    "(Tensor x, Tensor w13, Tensor w2, int I, Tensor? routed=None, float routed_scaling_factor=1.0) -> "
    "Tensor",
    "x.new_empty(x.shape)");

}  // namespace kernelpair
