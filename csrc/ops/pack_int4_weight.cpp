// pack_int4_weight and unpack_int4_weight: checks and registration. Contract: docs/contracts/pack_int4_weight.md.
#include "kernels/pack_int4_weight.h"

#include <cmath>

#include "core/operator.h"
#include "linear/int4_weight.h"

namespace kernelpair {
namespace {

void check_at_most(Arg arg, int limit) {
  check_dtype(arg, {Dtype::u8});
  for (int64_t i = 0; i < arg.view.sizes[0]; ++i)
    for (int64_t j = 0; j < arg.view.sizes[1]; ++j) {
      const int value = *at<uint8_t>(arg.view, i, j);
      KP_CHECK_VALUE(value <= limit, arg.name, "[", i, ", ", j, "] = ", value, " is above ", limit);
    }
}

// `packed` [panels, groups, 32] holds the scales of the outputs in panels.
void check_finite(const View& packed, int64_t N) {
  for (int64_t n = 0; n < N; ++n)
    for (int64_t g = 0; g < packed.sizes[1]; ++g) {
      const float scale = at<float>(packed, n / 32, g)[n % 32];
      KP_CHECK_VALUE(std::isfinite(scale), "scales[", n, ", ", g, "] = ", scale, " is not finite");
    }
}

std::tuple<Tensor, Tensor, Tensor> pack_int4_weight(const Tensor& codes_in, const Tensor& scales_in,
                                                    const std::optional<Tensor>& zeros_in,
                                                    int64_t group_size) {
  const View codes = view_of("codes", codes_in), scales = view_of("scales", scales_in),
             zeros = view_of("zeros", zeros_in);
  check_rank({"codes", codes}, 2);
  const int64_t N = codes.sizes[0], K = codes.sizes[1];
  KP_CHECK_VALUE(N >= 1 && K >= 1, "codes must not be empty, got shape ", shape_of(codes));
  const int64_t groups = divide_up(K, checked_group_size(group_size, N, K));
  check_at_most({"codes", codes}, 15);
  check_float({"scales", scales});
  check_shape({"scales", scales}, {N, groups});
  if (zeros.defined) {
    check_shape({"zeros", zeros}, {N, groups});
    check_at_most({"zeros", zeros}, 16);
  }
  const auto shape = int4_weight_shape(N, K);
  Tensor data = new_weight(shape.data(), shape.size(), Dtype::u8);
  const std::array<int64_t, 3> grouped = {shape[0], groups, 32};
  Tensor kept_scales = new_weight(grouped.data(), grouped.size(), Dtype::f32);
  Tensor kept_zeros = new_weight(grouped.data(), grouped.size(), Dtype::u8);
  const View packed_scales = view_of("scales", kept_scales);
  kernels::pack_int4_weight({.codes = codes,
                             .scales = scales,
                             .zeros = zeros,
                             .data = view_of("data", data),
                             .packed_scales = packed_scales,
                             .packed_zeros = view_of("zeros", kept_zeros)});
  check_finite(packed_scales, N);
  return {std::move(data), std::move(kept_scales), std::move(kept_zeros)};
}

std::tuple<Tensor, Tensor, Tensor> unpack_int4_weight(const Tensor& data_in, const Tensor& scales_in,
                                                      const Tensor& zeros_in, int64_t N, int64_t K,
                                                      int64_t group_size) {
  const View data = view_of("data", data_in), scales = view_of("scales", scales_in),
             zeros = view_of("zeros", zeros_in);
  const int64_t size =
      check_int4_weight({"data", data}, {"scales", scales}, {"zeros", zeros}, N, K, group_size);
  const int64_t groups = divide_up(K, size);
  Tensor codes = new_tensor({N, K}, Dtype::u8), plain_scales = new_tensor({N, groups}, Dtype::f32),
         plain_zeros = new_tensor({N, groups}, Dtype::u8);
  kernels::unpack_int4_weight({.codes = view_of("codes", codes),
                               .scales = view_of("scales", plain_scales),
                               .zeros = view_of("zeros", plain_zeros),
                               .data = data,
                               .packed_scales = scales,
                               .packed_zeros = zeros});
  return {std::move(codes), std::move(plain_scales), std::move(plain_zeros)};
}

}  // namespace

KP_OPERATOR(pack_int4_weight,
            "(Tensor codes, Tensor scales, Tensor? zeros, int group_size) -> (Tensor, Tensor, Tensor)",
            "(codes.new_empty((-(-codes.shape[0] // 32), -(-codes.shape[1] // 32), 2, 16, 16)), "
            "scales.new_empty((-(-codes.shape[0] // 32), scales.shape[1], 32), dtype=torch.float32), "
            "codes.new_empty((-(-codes.shape[0] // 32), scales.shape[1], 32)))");
KP_OPERATOR(
    unpack_int4_weight,
    "(Tensor data, Tensor scales, Tensor zeros, int N, int K, int group_size) -> (Tensor, Tensor, Tensor)",
    "(data.new_empty((N, K)), scales.new_empty((N, scales.shape[1])), zeros.new_empty((N, zeros.shape[1])))");

}  // namespace kernelpair
