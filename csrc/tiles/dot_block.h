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
constexpr int kBlockPasses = 4, kBlockParts = 16;

// Rows of A that take no more passes over B than `rows` of them have to: 5 rows alone take two, of 4 and of 1. For
// callers whose tiles have room for them.
KP_INLINE int rows_of_fewest_passes(int rows) {
  int whole = 1;
  while (whole < rows) whole *= 2;
  return whole;
}

// kRows rows from row `row` of tile i of A times kColumns tiles of B, from tile j on.
template <int kRows, int kColumns, class A, class B, class Between>
KP_NOINLINE void multiply_rows(int i, int row, int j, __mmask16 columns, const A& a, const B& b,
                               int64_t steps, const BlockSums* from, const BlockSums& to,
                               const Between& between) {
  __m512 sums[kRows][kColumns];
  const auto place = [&](const BlockSums& block, int r, int c) KP_LAMBDA_INLINE {
    return reinterpret_cast<char*>(block.tile(i, j + c)) + (row + r) * block.stride;
  };
  const int pass = 2 * i + row / 8;
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
    for (int c = 0; c < kColumns; ++c) _mm512_mask_storeu_ps(place(to, r, c), columns, sums[r][c]);
}

// One tile of A times kColumns tiles of B, in runs of rows that registers can hold.
template <int kColumns, class A, class B, class Between>
KP_INLINE void multiply_tile(TileShape shape, int i, int j, const A& a, const B& b, int64_t steps,
                             const BlockSums* from, const BlockSums& to, const Between& between) {
  constexpr int kRunRows = kSumRegisters / kColumns;
  const auto columns = static_cast<__mmask16>((1u << shape.columns) - 1);
  int row = 0;
  for (; row + kRunRows <= shape.rows; row += kRunRows)
    multiply_rows<kRunRows, kColumns>(i, row, j, columns, a, b, steps, from, to, between);
  if (kColumns == 1 && shape.rows & 8)
    multiply_rows<8, 1>(i, row, j, columns, a, b, steps, from, to, between), row += 8;
  if (shape.rows & 4)
    multiply_rows<4, kColumns>(i, row, j, columns, a, b, steps, from, to, between), row += 4;
  if (shape.rows & 2)
    multiply_rows<2, kColumns>(i, row, j, columns, a, b, steps, from, to, between), row += 2;
  if (shape.rows & 1) multiply_rows<1, kColumns>(i, row, j, columns, a, b, steps, from, to, between);
}

template <int kDown, int kAcross, class Product = Bf16Product, class A, class B, class Between>
KP_INLINE void block_product(TileShape shape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to, const Between& between) {
  constexpr int kColumns = kAcross % 2 ? 1 : 2;
  for (int i = 0; i < kDown; ++i)
    for (int j = 0; j < kAcross; j += kColumns)
      multiply_tile<kColumns>(shape, i, j, a, b, steps, from, to, between);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
