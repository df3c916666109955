// Sixteen pairs of numbers on their way to memory.
#pragma once

#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

// Sixteen outputs at two neighbouring k: in the order that products of floats or of bf16 read.
KP_INLINE void store_outputs(float* to, F32x16 even, F32x16 odd) {
  store(to, even);
  store(to + kLanes, odd);
}
KP_INLINE void store_outputs(Bf16* to, F32x16 even, F32x16 odd) {
#if defined(__AVX512BF16__)
  const __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd.p[0], (__m512)even.p[0]);
  const __m512i sixteen = _mm512_add_epi32(_mm512_set1_epi32(16 << 16), (__m512i)lane_numbers().p[0]);
  const __m512i order = _mm512_or_si512(sixteen, _mm512_slli_epi32((__m512i)lane_numbers().p[0], 16));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, apart));
#else
  store_dwords(to, bf16_bits(even) | shift_left<16>(bf16_bits(odd)));
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
