// Rows of quads against panels of quads of bytes: the loop of int8_linear and of the exact sums of int4_linear.
//
// | number      | value         | why                                                                       |
// |-------------|---------------|---------------------------------------------------------------------------|
// | kByteRows   | 6 / 8 / 6 / 1 | VNNI / AVX512 / AVX2 / scalar: rows of a block ...                        |
// | kBytePanels | 2 / 1 / 1 / 1 | ... and panels: sums in 24 of 32 registers, 16 of 32, 24 of 16, 8 of 16   |
// |             |               | (12 at a time: AVX2 takes the halves of a panel one after the other)      |
// | unroll      | 4             | quads a turn of the loop; with 24 sums gcc keeps one, and more gain       |
// |             |               | nothing (Zen 4)                                                           |
#pragma once

#include "linear/row_blocks.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kByteRows = kHasVnni ? 6 : kVectorBytes == 64 ? 8 : kRowBlock;
constexpr int kBytePanels = kHasVnni ? 2 : 1;

// Where the quads of a panel lie, in bytes: the first of each next one, of its second half, of the panel behind it.
struct QuadPlaces {
  int64_t quad, half, panel;
};

// sums += rows x part of the weights; the quad of row r is at r * row_dwords of x.
template <int kPart, int kRows, int kHalves>
KP_INLINE void add_part(I32x16 (&sums)[kRows][kHalves], const uint32_t* x, int64_t row_dwords,
                        const int8_t* weights, QuadPlaces places) {
  I32x16 column[kHalves];
#pragma GCC unroll 4
  for (int half = 0; half < kHalves; ++half)
    column[half] = load_quads<kPart>(weights + half / 2 * places.panel + half % 2 * places.half);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int half = 0; half < kHalves; ++half)
      sums[r][half] = add_products(sums[r][half], x[r * row_dwords + kPart], column[half]);
}

// sums += rows x weights over `quads` quads; those of row r begin at r * row_dwords of x.
template <bool kStream, int kRows, int kHalves>
KP_INLINE void add_quads(I32x16 (&sums)[kRows][kHalves], const uint32_t* x, int64_t row_dwords,
                         const int8_t* weights, QuadPlaces places, int64_t quads, int64_t ahead_panel,
                         Ahead& ahead) {
#pragma GCC unroll 4
  for (int64_t quad = 0; quad < quads; ++quad, x += kQuadDwords, weights += places.quad) {
    if constexpr (kHalves > 2) __builtin_prefetch(ahead.at + ahead_panel, 0, 2);
    prefetch<kStream>(ahead);
    add_part<0>(sums, x, row_dwords, weights, places);
    if constexpr (kQuadDwords > 1) add_part<1>(sums, x, row_dwords, weights, places);
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
