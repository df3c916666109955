// From vectors to tile operands: pairs of fp32 rows rounded into the dwords of a bf16 tile. Tiles are dense 1
// KiB blocks.
#pragma once

#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kTileFloats = 256;  // an fp32 tile: 16 x 16
constexpr int kTileHalves = 512;  // a bf16 tile: 16 x 32

// Lane n holds bf16(low[n]) in its lower and bf16(high[n]) in its upper half: two depths of one column of B,
// or of one row of A.
KP_INLINE I32x16 pack_pairs(F32x16 low, F32x16 high) {
#if defined(__AVX512BF16__)
  constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(high.p[0], low.p[0]);
  return {{(IntPiece)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves)}};
#else
  return bf16_bits(low) | shift_left<16>(bf16_bits(high));
#endif
}

// Thirty-two bf16 in order, `first` before `second`.
KP_INLINE I32x16 pack_row(F32x16 first, F32x16 second) {
#if defined(__AVX512BF16__)
  return {{(IntPiece)(__m512i)_mm512_cvtne2ps_pbh(second.p[0], first.p[0])}};
#else
  Bf16 row[2 * kLanes];
  store(row, first);
  store(row + kLanes, second);
  return load_dwords(row);
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
