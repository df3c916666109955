// pack_int8_weight and unpack_int8_weight: checks and registration. Contract: docs/contracts/pack_int8_weight.md.
#include "kernels/pack_int8_weight.h"
#include "core/operator.h"
#include "linear/int8_weight.h"

namespace kernelpair {
namespace {

std::tuple<Tensor, Tensor> pack_int8_weight(const Tensor& weight_in) {
  const View weight = view_of("weight", weight_in);
  check_dtype({"weight", weight}, {Dtype::i8});
  check_rank({"weight", weight}, 2);
  const int64_t N = weight.sizes[0], K = weight.sizes[1];
  KP_CHECK_VALUE(N >= 1 && K >= 1, "weight must not be empty, got shape ", shape_of(weight));
  KP_CHECK_VALUE(K <= kMostWidth, "weight must have at most ", kMostWidth, " columns, got K = ", K);
  const auto shape = int8_weight_shape(N, K);
  Tensor data = new_weight(shape.data(), shape.size(), Dtype::i8), sums = new_tensor({N}, Dtype::i32);
  kernels::pack_int8_weight({.weight = weight, .data = view_of("data", data), .sums = view_of("sums", sums)});
  return {std::move(data), std::move(sums)};
}

Tensor unpack_int8_weight(const Tensor& data_in, int64_t N, int64_t K) {
  const View data = view_of("data", data_in);
  check_int8_weight({"data", data}, N, K);
  Tensor weight = new_tensor({N, K}, Dtype::i8);
  kernels::unpack_int8_weight({.weight = view_of("weight", weight), .data = data, .sums = View{}});
  return weight;
}

}  // namespace

KP_OPERATOR(pack_int8_weight, "(Tensor weight) -> (Tensor, Tensor)",
            "(weight.new_empty((-(-weight.shape[0] // 32), -(-weight.shape[1] // 64), 2, 16, 16, 4)), "
            "weight.new_empty(weight.shape[:1], dtype=torch.int32))");
KP_OPERATOR(unpack_int8_weight, "(Tensor data, int N, int K) -> Tensor", "data.new_empty((N, K))");

}  // namespace kernelpair
