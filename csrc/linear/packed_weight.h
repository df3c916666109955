// The shape of a packed linear weight, for the operators that make or take one. Layouts vnni2-n32k32 and
// f32-n32k32: [ceil(N/32), ceil(K/32), 2, 32/r, 16, r] with r = 2 for 16-bit elements and 1 for fp32.
#pragma once

#include <array>

#include "core/checks.h"

namespace kernelpair {

inline std::array<int64_t, 6> packed_weight_shape(int64_t N, int64_t K, Dtype dtype) {
  const int64_t r = element_size(dtype) == 2 ? 2 : 1;
  // n + 31 would overflow for a wrong n.
  const auto blocks = [](int64_t n) { return n / 32 + (n % 32 != 0); };
  return {blocks(N), blocks(K), 2, 32 / r, 16, r};
}

inline void check_packed_weight(Arg packed, int64_t N, int64_t K) {
  check_float(packed);
  KP_CHECK_VALUE(N >= 1, "N must be at least 1, got ", N);
  KP_CHECK_VALUE(K >= 1, "K must be at least 1, got ", K);
  const auto shape = packed_weight_shape(N, K, packed.view.dtype);
  check_shape(packed, {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]});
  check_contiguous(packed);
}

}  // namespace kernelpair
