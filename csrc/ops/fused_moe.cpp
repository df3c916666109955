// fused_moe and shared_expert: checks and registration. Contract: docs/contracts/fused_moe.md.
#include "kernels/fused_moe.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/operator.h"
#include "linear/fp8_weight.h"
#include "linear/int8_weight.h"

namespace kernelpair {
namespace {

using Block = std::optional<std::vector<int64_t>>;

// A stack of E packed weights [N, K], as pack_linear_weight, pack_int8_weight or pack_fp8_weight leave each, the last
// two dimensions as one; of int8 with the sums and scales of its rows, of float8 with the scales of its blocks.
struct Stack {
  std::string name, sums_name, scale_name, block_name;
  View data, sums, scale;
  Block block;

  Stack(const char* of_data, const Tensor& data_in, const std::optional<Tensor>& sums_in,
        const std::optional<Tensor>& scale_in, const Block& block_in)
      : name(of_data),
        sums_name(name + "_sums"),
        scale_name(name + "_scale"),
        block_name(name + "_block"),
        data(view_of(name.c_str(), data_in)),
        sums(view_of(sums_name.c_str(), sums_in)),
        scale(view_of(scale_name.c_str(), scale_in)),
        block(block_in) {}

  void check(const View& x, int64_t E, int64_t N, int64_t K) const {
    const bool int8 = data.dtype == Dtype::i8, fp8 = data.dtype == Dtype::u8;
    const Arg of_data{name.c_str(), data}, of_scale{scale_name.c_str(), scale};
    check_rank(of_data, 6);
    if (int8) check_int8_sizes(N, K);
    if (!int8 && !fp8) check_same_dtype(of_data, {{"x", x}});
    KP_CHECK_VALUE(data.sizes[0] == E && E >= 1, name, " holds ", data.sizes[0], " experts, expected ", E);
    const auto shape = int8  ? int8_weight_shape(N, K)
                       : fp8 ? fp8_weight_shape(N, K)
                             : packed_weight_shape(N, K, data.dtype);
    check_shape(of_data, {E, shape[0], shape[1], shape[2], shape[3], shape[4] * shape[5]});
    check_contiguous(of_data);
    KP_CHECK_TYPE(sums.defined == int8, sums_name, " belongs to an int8 ", name, ", and to no other");
    KP_CHECK_TYPE(scale.defined == (int8 || fp8), scale_name, " belongs to an int8 or float8 ", name,
                  ", and to no other");
    KP_CHECK_TYPE(block.has_value() == fp8, block_name, " belongs to a float8 ", name, ", and to no other");
    if (scale.defined) check_dtype(of_scale, {Dtype::f32});
    if (fp8) {
      KP_CHECK_VALUE(block->size() == 2, block_name, " must hold two numbers, got ", block->size());
      for (int side = 0; side < 2; ++side)
        KP_CHECK_VALUE((*block)[side] >= 1, block_name, side ? "_k" : "_n", " must be at least 1, got ",
                       (*block)[side]);
      check_shape(of_scale, {E, divide_up(N, (*block)[0]), divide_up(K, (*block)[1])});
    }
    if (!int8) return;
    const Arg of_sums{sums_name.c_str(), sums};
    check_dtype(of_sums, {Dtype::i32});
    check_shape(of_sums, {E, N});
    check_shape(of_scale, {E, N});
  }

  ExpertWeights with(const View& bias) const {
    return {data, sums, scale, block ? (*block)[0] : 0, block ? (*block)[1] : 0, bias};
  }
};

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
  View x;
  Stack w13, w2;
  View b13, b2;
  int64_t E, D, inner;

  Experts(const Tensor& x_in, const Stack& gate_up, const Stack& down, int64_t I,
          const std::optional<Tensor>& b13_in, const std::optional<Tensor>& b2_in)
      : x(view_of("x", x_in)),
        w13(gate_up),
        w2(down),
        b13(view_of("b13", b13_in)),
        b2(view_of("b2", b2_in)),
        inner(I) {
    check_rank({"x", x}, 2);
    check_float({"x", x});
    check_dense_last_dim({"x", x});
    D = x.sizes[1];
    KP_CHECK_VALUE(D >= 1, "x must have a column, got shape ", shape_of(x));
    KP_CHECK_VALUE(inner >= 1 && inner <= INT64_MAX / 2, "I must be at least 1, got ", inner);
    check_rank({"w13", w13.data}, 6);
    check_same_dtype({"w13", w13.data}, {{"w2", w2.data}});
    E = w13.data.sizes[0];
    w13.check(x, E, 2 * inner, D);
    w2.check(x, E, D, inner);
    check_bias({"b13", b13}, E, 2 * inner, x.dtype);
    check_bias({"b2", b2}, E, D, x.dtype);
  }

  // `rows` that are shared out to the experts.
  Work work(int64_t rows) const {
    return w13.data.dtype == Dtype::u8 ? work_of_rows(rows / E) : Work::products;
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

Tensor fused_moe(const Tensor& x_in, const Tensor& w13, const std::optional<Tensor>& w13_sums,
                 const std::optional<Tensor>& w13_scale, const Block& w13_block, const Tensor& w2,
                 const std::optional<Tensor>& w2_sums, const std::optional<Tensor>& w2_scale,
                 const Block& w2_block, int64_t I, const Tensor& weights_in, const Tensor& ids_in,
                 const std::optional<Tensor>& b13, const std::optional<Tensor>& b2,
                 bool apply_router_weight_on_input) {
  const Experts experts(x_in, {"w13", w13, w13_sums, w13_scale, w13_block},
                        {"w2", w2, w2_sums, w2_scale, w2_block}, I, b13, b2);
  const View weights = view_of("topk_weights", weights_in), ids = view_of("topk_ids", ids_in), none;
  const int64_t T = experts.x.sizes[0];
  check_routing({"topk_weights", weights}, {"topk_ids", ids}, T, experts.E, apply_router_weight_on_input);
  Tensor out = new_tensor({T, experts.D}, experts.x.dtype);
  kernels::fused_moe({.x = experts.x,
                      .w13 = experts.w13.with(experts.b13),
                      .w2 = experts.w2.with(experts.b2),
                      .inner = I,
                      .topk_weights = weights,
                      .topk_ids = ids,
                      .apply_router_weight_on_input = apply_router_weight_on_input,
                      .routed = none,
                      .routed_scaling_factor = 0,
                      .out = view_of("out", out)},
                     experts.work(T * ids.sizes[1]));
  return out;
}

Tensor shared_expert(const Tensor& x_in, const Tensor& w13, const std::optional<Tensor>& w13_sums,
                     const std::optional<Tensor>& w13_scale, const Block& w13_block, const Tensor& w2,
                     const std::optional<Tensor>& w2_sums, const std::optional<Tensor>& w2_scale,
                     const Block& w2_block, int64_t I, const std::optional<Tensor>& routed_in,
                     double routed_scaling_factor) {
  const Experts experts(x_in, {"w13", w13, w13_sums, w13_scale, w13_block},
                        {"w2", w2, w2_sums, w2_scale, w2_block}, I, {}, {});
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
                      .w13 = experts.w13.with(none),
                      .w2 = experts.w2.with(none),
                      .inner = I,
                      .topk_weights = none,
                      .topk_ids = none,
                      .apply_router_weight_on_input = false,
                      .routed = routed,
                      .routed_scaling_factor = static_cast<float>(routed_scaling_factor),
                      .out = view_of("out", out)},
                     experts.work(T));
  return out;
}

}  // namespace

KP_OPERATOR(fused_moe,
            "(Tensor x, Tensor w13, Tensor? w13_sums, Tensor? w13_scale, int[]? w13_block, Tensor w2, "
            "Tensor? w2_sums, "
            "Tensor? w2_scale, int[]? w2_block, int I, "
            "Tensor topk_weights, Tensor topk_ids, Tensor? b13=None, Tensor? b2=None, bool "
            "apply_router_weight_on_input=False) -> Tensor",
            "x.new_empty(x.shape)");
KP_OPERATOR(shared_expert,
            "(Tensor x, Tensor w13, Tensor? w13_sums, Tensor? w13_scale, int[]? w13_block, Tensor w2, "
            "Tensor? w2_sums, "
            "Tensor? w2_scale, int[]? w2_block, int I, "
            "Tensor? routed=None, float routed_scaling_factor=1.0) -> Tensor",
            "x.new_empty(x.shape)");

}  // namespace kernelpair
