// block_product of the avx512_bf16 tier: tiles multiplied with VDPBF16PS, sixteen sums at a time in
// registers.
//
// A register of B serves up to eight rows of A, and a pair of A spread over a register two tiles of B: ten
// loads feed sixteen products. The sums of those rows stay in registers over all steps; operands in L1 or L2
// then reach the peak.
#pragma once

#include <immintrin.h>

#include "tiles/tile_block.h"

namespace kernelpair::KP_TIER {
namespace {

struct TileScope {  // no state: registers hold what tiles would
  KP_INLINE explicit TileScope(TileShape = {}) {}
};

constexpr int kSumRegisters = 16;  // half of all; enough chains for the latency of two products a cycle
// Rows of a pass, if there are two tiles of B or the tile of A is not full.
constexpr int kMostRows = kSumRegisters / 2;
constexpr int kBlockParts = 16;
// Over B, of a block with `rows` rows of A and an even number of tiles of B.
KP_INLINE int64_t block_passes(int64_t rows) { return divide_up(rows, kMostRows); }

// kRows rows from row `row` of tile i of A times kColumns tiles of B, from tile j on.
template <int kRows, int kColumns, class A, class B, class Between>
KP_NOINLINE void multiply_rows(int pass, int i, int row, int j, __mmask16 columns, const A& a, const B& b,
                               int64_t steps, const BlockSums* from, const BlockSums& to,
                               const Between& between) {
  __m512 sums[kRows][kColumns];
  const auto place = [&](const BlockSums& block, int r, int c) KP_LAMBDA_INLINE {
    return reinterpret_cast<char*>(block.tile(i, j + c)) + (row + r) * block.stride;
  };
  const BlockSums target = to;  // as far as the compiler sees, stores of sums may change the caller's
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < kColumns; ++c)
      sums[r][c] = from ? _mm512_maskz_loadu_ps(columns, place(*from, r, c)) : _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; ++s) {
    const TilePlace left = a(i, s);
    TilePlace right[kColumns];
#pragma GCC unroll 2
    for (int c = 0; c < kColumns; ++c) right[c] = b(j + c, s);
    const char* pairs = static_cast<const char*>(left.data) + row * left.stride;
    for (int k = 0; k < kBlockParts; ++k) {
      between(s, pass, k);
      __m512bh column[kColumns];
#pragma GCC unroll 2
      for (int c = 0; c < kColumns; ++c)
        column[c] = (__m512bh)_mm512_maskz_loadu_epi32(
            columns, static_cast<const char*>(right[c].data) + k * right[c].stride);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int pair;
        __builtin_memcpy(&pair, pairs + r * left.stride + 4 * k, sizeof pair);
        const __m512bh spread = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
        for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], spread, column[c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < kColumns; ++c) _mm512_mask_storeu_ps(place(target, r, c), columns, sums[r][c]);
}

// Rows of a tile of A times kColumns tiles of B: in as few passes over B as registers allow, and those alike, for a pass
// of few rows has too few chains of products. Where the compiler knows that the tile is full, it drops the other shapes.
template <int kColumns, class A, class B, class Between>
KP_INLINE void multiply_tile(int pass, int rows, int i, int j, __mmask16 columns, const A& a, const B& b,
                             int64_t steps, const BlockSums* from, const BlockSums& to,
                             const Between& between) {
  constexpr int kMost = kSumRegisters / kColumns;
  if (rows == kTileRows) {
    for (int row = 0; row < kTileRows; row += kMost, ++pass)
      multiply_rows<kMost, kColumns>(pass, i, row, j, columns, a, b, steps, from, to, between);
    return;
  }
  int64_t passes = divide_up(rows, kMostRows);
  for (int row = 0, count; row < rows; row += count, ++pass, --passes) {
    count = static_cast<int>(divide_up(rows - row, passes));
    with_count<kMostRows>(count, [&](auto n) KP_LAMBDA_INLINE {
      multiply_rows<n, kColumns>(pass, i, row, j, columns, a, b, steps, from, to, between);
    });
  }
}

template <int kDown, int kAcross, class Product = Bf16Product, class A, class B, class Between>
KP_INLINE void block_product(TileShape shape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to, const Between& between) {
  constexpr int kColumns = kAcross % 2 ? 1 : 2;
  const auto columns = static_cast<__mmask16>((1u << shape.columns) - 1);
  int pass = 0;
  for (int i = 0; i < kDown; ++i) {
    const int rows = i + 1 < kDown ? shape.rows : shape.last_rows;
    for (int j = 0; j < kAcross; j += kColumns)
      multiply_tile<kColumns>(pass, rows, i, j, columns, a, b, steps, from, to, between);
    pass += static_cast<int>(block_passes(rows));
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
