// Products of bf16 pairs in vectors, without tiles.
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_PRODUCTS_DOTS)

constexpr bool kHasDotProducts = true;

// Each lane of sum += both products of its pairs.
KP_INLINE F32x16 dot_pairs(F32x16 sum, I32x16 a, I32x16 b) {
  return {{(FloatPiece)_mm512_dpbf16_ps((__m512)sum.p[0], (__m512bh)a.p[0], (__m512bh)b.p[0])}};
}

// Elements of 16 bits of two rows of 32 side by side: 8 i .. 8 i + 3 of each in `low`, 8 i + 4 .. 8 i + 7 in
// `high`.
KP_INLINE void unpack_rows(I32x16 first, I32x16 second, I32x16& low, I32x16& high) {
  low = {{(IntPiece)_mm512_unpacklo_epi16((__m512i)first.p[0], (__m512i)second.p[0])}};
  high = {{(IntPiece)_mm512_unpackhi_epi16((__m512i)first.p[0], (__m512i)second.p[0])}};
}

#else

// Named in templates that these tiers do not instantiate.
constexpr bool kHasDotProducts = false;
F32x16 dot_pairs(F32x16 sum, I32x16 a, I32x16 b);
void unpack_rows(I32x16 first, I32x16 second, I32x16& low, I32x16& high);

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
