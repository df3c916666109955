// pack_linear_weight and unpack_linear_weight: checks and registration. Contract:
// docs/contracts/pack_linear_weight.md.
#include "kernels/pack_linear_weight.h"
#include "core/operator.h"
#include "linear/packed_weight.h"

namespace kernelpair {
namespace {

Tensor pack_linear_weight(const Tensor& weight_in) {
  const View weight = view_of("weight", weight_in);
  check_float({"weight", weight});
  check_rank({"weight", weight}, 2);
  const int64_t N = weight.sizes[0], K = weight.sizes[1];
  KP_CHECK_VALUE(N >= 1 && K >= 1, "weight must not be empty, got shape ", shape_of(weight));
  const auto shape = packed_weight_shape(N, K, weight.dtype);
  Tensor packed = new_weight(shape.data(), shape.size(), weight.dtype);
  kernels::pack_linear_weight({.weight = weight, .packed = view_of("packed", packed)});
  return packed;
}

Tensor unpack_linear_weight(const Tensor& packed_weight, int64_t N, int64_t K) {
  const View packed = view_of("packed_weight", packed_weight);
  check_packed_weight({"packed_weight", packed}, N, K);
  Tensor weight = new_tensor({N, K}, packed.dtype);
  kernels::unpack_linear_weight({.weight = view_of("weight", weight), .packed = packed});
  return weight;
}

}  // namespace

KP_OPERATOR(pack_linear_weight, "(Tensor weight) -> Tensor",
            "weight.new_empty((-(-weight.shape[0] // 32), -(-weight.shape[1] // 32), 2, "
            "32 // (4 // weight.element_size()), 16, 4 // weight.element_size()))");
KP_OPERATOR(unpack_linear_weight, "(Tensor packed_weight, int N, int K) -> Tensor",
            "packed_weight.new_empty((N, K))");

}  // namespace kernelpair
