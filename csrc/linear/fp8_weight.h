// The shape of a packed float8 weight and of its scales, for the operators that make or take one. Layout
// e4m3-vnni2-n32k32: [ceil(N/32), ceil(K/32), 2, 16, 16, 2] of bytes, the codes of float8_e4m3fn.
#pragma once

#include "core/integers.h"
#include "core/tier.h"
#include "linear/packed_weight.h"

namespace kernelpair {

// What a product with a float8 weight does most of the time: decoding, of up to three rows. On an Intel CPU whose dot
// products are half as fast as FMAs, one row took 0.7 of the FMA tier's time with them, 3 rows 0.86, 4 rows 1.05.
inline Work work_of_rows(int64_t rows) { return rows <= 3 ? Work::other : Work::products; }

inline void check_block_size(int64_t block_n, int64_t block_k) {
  KP_CHECK_VALUE(block_n >= 1, "block_n must be at least 1, got ", block_n);
  KP_CHECK_VALUE(block_k >= 1, "block_k must be at least 1, got ", block_k);
}

// One scale for each block of block_n outputs and block_k columns.
inline void check_block_scales(Arg scales, int64_t N, int64_t K, int64_t block_n, int64_t block_k) {
  check_block_size(block_n, block_k);
  check_dtype(scales, {Dtype::f32});
  check_shape(scales, {divide_up(N, block_n), divide_up(K, block_k)});
}

inline std::array<int64_t, 6> fp8_weight_shape(int64_t N, int64_t K) {
  return {divide_up(N, 32), divide_up(K, 32), 2, 16, 16, 2};
}

inline void check_fp8_weight(Arg data, int64_t N, int64_t K) {
  check_dtype(data, {Dtype::u8});
  KP_CHECK_VALUE(N >= 1, "N must be at least 1, got ", N);
  KP_CHECK_VALUE(K >= 1, "K must be at least 1, got ", K);
  const auto shape = fp8_weight_shape(N, K);
  check_shape(data, {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]});
  check_contiguous(data);
}

}  // namespace kernelpair
