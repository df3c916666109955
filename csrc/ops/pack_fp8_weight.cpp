// pack_fp8_weight and unpack_fp8_weight: checks and registration. Contract: docs/contracts/pack_fp8_weight.md.
#include "kernels/pack_fp8_weight.h"

#include <cmath>

#include "core/operator.h"
#include "linear/fp8_weight.h"

namespace kernelpair {
namespace {

// A dense copy, so that the packed weight changes with nobody's tensor.
Tensor checked_copy(const View& scales) {
  const int64_t rows = scales.sizes[0], columns = scales.sizes[1];
  Tensor copy = new_tensor({rows, columns}, Dtype::f32);
  auto* to = static_cast<float*>(copy.data_ptr());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const float scale = *at<float>(scales, i, j);
      KP_CHECK_VALUE(std::isfinite(scale), "scales[", i, ", ", j, "] = ", scale, " is not finite");
      *to++ = scale;
    }
  return copy;
}

std::tuple<Tensor, Tensor> pack_fp8_weight(const Tensor& weight_in, const Tensor& scales_in, int64_t block_n,
                                           int64_t block_k) {
  const View weight = view_of("weight", weight_in), scales = view_of("scales", scales_in);
  check_dtype({"weight", weight}, {Dtype::f8e4m3});
  check_rank({"weight", weight}, 2);
  const int64_t N = weight.sizes[0], K = weight.sizes[1];
  KP_CHECK_VALUE(N >= 1 && K >= 1, "weight must not be empty, got shape ", shape_of(weight));
  check_block_scales({"scales", scales}, N, K, block_n, block_k);
  Tensor kept = checked_copy(scales);
  const auto shape = fp8_weight_shape(N, K);
  Tensor data = new_weight(shape.data(), shape.size(), Dtype::u8);
  kernels::pack_fp8_weight({.weight = weight, .data = view_of("data", data)});
  return {std::move(data), std::move(kept)};
}

Tensor unpack_fp8_weight(const Tensor& data_in, int64_t N, int64_t K) {
  const View data = view_of("data", data_in);
  check_fp8_weight({"data", data}, N, K);
  Tensor weight = new_tensor({N, K}, Dtype::f8e4m3);
  kernels::unpack_fp8_weight({.weight = view_of("weight", weight), .data = data});
  return weight;
}

}  // namespace

KP_OPERATOR(pack_fp8_weight, "(Tensor weight, Tensor scales, int block_n, int block_k) -> (Tensor, Tensor)",
            "(weight.new_empty((-(-weight.shape[0] // 32), -(-weight.shape[1] // 32), 2, 16, 16, 2), "
            "dtype=torch.uint8), scales.new_empty(scales.shape))");
KP_OPERATOR(unpack_fp8_weight, "(Tensor data, int N, int K) -> Tensor",
            "data.new_empty((N, K), dtype=torch.float8_e4m3fn)");

}  // namespace kernelpair
