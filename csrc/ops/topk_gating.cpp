// topk_gating: checks and registration. Contract: docs/contracts/topk_gating.md.
#include "kernels/topk_gating.h"

#include <cmath>

#include "core/operator.h"

namespace kernelpair {
namespace {

bool is_sigmoid(const std::string& scoring) {
  KP_CHECK_VALUE(scoring == "softmax" || scoring == "sigmoid",
                 "scoring must be one of softmax, sigmoid, got '", scoring, "'");
  return scoring == "sigmoid";
}

void check_groups(int64_t experts, int64_t groups, int64_t topk_group, int64_t topk, bool biased) {
  KP_CHECK_VALUE(groups >= 1 && experts % groups == 0, "num_expert_group = ", groups, " does not divide ",
                 experts, " experts");
  KP_CHECK_VALUE(topk_group >= 1 && topk_group <= groups, "topk_group = ", topk_group, " is outside [1, ",
                 groups, "]");
  const int64_t size = experts / groups;
  KP_CHECK_VALUE(!biased || groups == 1 || size >= 2,
                 "correction_bias needs groups of two experts or more, "
                 "num_expert_group = ",
                 groups, " leaves ", size);
  KP_CHECK_VALUE(topk >= 1 && topk <= topk_group * size, "topk = ", topk, " is outside [1, ",
                 topk_group * size, "], the experts of the groups that stay");
}

std::tuple<Tensor, Tensor> topk_gating(const Tensor& logits_in, int64_t topk, const std::string& scoring,
                                       bool renormalize, const std::optional<Tensor>& bias_in,
                                       int64_t num_expert_group, int64_t topk_group, double scaling_factor,
                                       std::optional<int64_t> num_valid) {
  const View logits = view_of("logits", logits_in), bias = view_of("correction_bias", bias_in);
  check_rank({"logits", logits}, 2);
  check_float({"logits", logits});
  check_dense_last_dim({"logits", logits});
  const int64_t T = logits.sizes[0], E = logits.sizes[1];
  if (bias.defined) check_parameter_vector({"correction_bias", bias}, E, logits.dtype);
  const bool sigmoid = is_sigmoid(scoring);
  check_groups(E, num_expert_group, topk_group, topk, bias.defined);
  KP_CHECK_VALUE(std::isfinite(static_cast<float>(scaling_factor)), "scaling_factor = ", scaling_factor,
                 " is not finite in float32");
  const int64_t valid = num_valid.value_or(T);
  KP_CHECK_VALUE(valid >= 0 && valid <= T, "num_valid = ", valid, " is outside [0, ", T, "]");
  Tensor weights = new_tensor({T, topk}, Dtype::f32), ids = new_tensor({T, topk}, Dtype::i32);
  kernels::topk_gating({.logits = logits,
                        .correction_bias = bias,
                        .weights = view_of("weights", weights),
                        .ids = view_of("ids", ids),
                        .sigmoid = sigmoid,
                        .renormalize = renormalize,
                        .num_expert_group = num_expert_group,
                        .topk_group = topk_group,
                        .num_valid = valid,
                        .scaling_factor = static_cast<float>(scaling_factor)});
  return {std::move(weights), std::move(ids)};
}

}  // namespace

KP_OPERATOR(topk_gating,
            "(Tensor logits, int topk, str scoring=\"softmax\", bool renormalize=True, Tensor? "
            "correction_bias=None, int num_expert_group=1, int topk_group=1, float scaling_factor=1.0, int? "
            "num_valid=None) -> (Tensor, Tensor)",
            "(logits.new_empty((logits.shape[0], topk), dtype=torch.float32), "
            "logits.new_empty((logits.shape[0], topk), dtype=torch.int32))");

}  // namespace kernelpair
