// The shapes of a packed weight of four bits, for the operators that make or take one. Layout nib2-n32k32:
// [ceil(N/32), ceil(K/32), 2, 16, 16] bytes of two codes; scales and zero points [ceil(N/32), groups, 32].
#pragma once

#include "core/integers.h"
#include "linear/packed_weight.h"

namespace kernelpair {

inline constexpr int64_t kMostCodes = 1 << 20;  // of K: 127 x 16 x K fits 32 bits

// Of a weight [N, K]; -1 is K itself.
inline int64_t checked_group_size(int64_t group_size, int64_t N, int64_t K) {
  KP_CHECK_VALUE(N >= 1, "N must be at least 1, got ", N);
  KP_CHECK_VALUE(K >= 1, "K must be at least 1, got ", K);
  KP_CHECK_VALUE(K <= kMostCodes, "K must be at most ", kMostCodes, ", got ", K);
  KP_CHECK_VALUE(group_size >= 1 || group_size == -1, "group_size must be at least 1, or -1, got ",
                 group_size);
  return group_size == -1 ? K : group_size;
}

inline std::array<int64_t, 5> int4_weight_shape(int64_t N, int64_t K) {
  return {divide_up(N, 32), divide_up(K, 32), 2, 16, 16};
}

// Returns the size of a group.
inline int64_t check_int4_weight(Arg data, Arg scales, Arg zeros, int64_t N, int64_t K, int64_t group_size) {
  const int64_t size = checked_group_size(group_size, N, K);
  check_dtype(data, {Dtype::u8});
  const auto shape = int4_weight_shape(N, K);
  check_shape(data, {shape[0], shape[1], shape[2], shape[3], shape[4]});
  check_dtype(scales, {Dtype::f32});
  check_shape(scales, {shape[0], divide_up(K, size), 32});
  check_dtype(zeros, {Dtype::u8});
  check_shape(zeros, {shape[0], divide_up(K, size), 32});
  for (const Arg& arg : {data, scales, zeros}) check_contiguous(arg);
  return size;
}

}  // namespace kernelpair
