// The shape of a packed int8 weight, for the operators that make or take one. Layout vnni4-n32k64:
// [ceil(N/32), ceil(K/64), 2, 16, 16, 4].
#pragma once

#include "core/integers.h"
#include "linear/packed_weight.h"

namespace kernelpair {

inline constexpr int64_t kMostWidth = 65536;  // of K: sums of 255 x 128 x K fit 32 bits

inline std::array<int64_t, 6> int8_weight_shape(int64_t N, int64_t K) {
  return {divide_up(N, 32), divide_up(K, 64), 2, 16, 16, 4};
}

inline void check_int8_sizes(int64_t N, int64_t K) {
  KP_CHECK_VALUE(N >= 1, "N must be at least 1, got ", N);
  KP_CHECK_VALUE(K >= 1, "K must be at least 1, got ", K);
  KP_CHECK_VALUE(K <= kMostWidth, "K must be at most ", kMostWidth, ", got ", K);
}

inline void check_int8_weight(Arg data, int64_t N, int64_t K) {
  check_dtype(data, {Dtype::i8});
  check_int8_sizes(N, K);
  const auto shape = int8_weight_shape(N, K);
  check_shape(data, {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]});
  check_contiguous(data);
}

}  // namespace kernelpair
