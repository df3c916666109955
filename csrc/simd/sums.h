// Sums across the lanes of several vectors at once.
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// to[i] = the sum of the lanes of rows[i].
template <int kRows>
KP_INLINE void store_sums(float* to, F32x16 (&rows)[kRows]) {
  for (int i = 0; i < kRows; ++i) to[i] = reduce_add(rows[i]);
}

#if defined(__AVX2__) && !defined(__AVX512F__)

// Four vectors become one of four lanes.
KP_INLINE void store_sums(float* to, F32x16 (&rows)[4]) {
  __m256 r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm256_add_ps((__m256)rows[i].p[0], (__m256)rows[i].p[1]);
  for (int i = 0; i < 4; i += 2)
    r[i] = _mm256_add_ps(_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
  const __m256 sums = _mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)r[0], (__m256d)r[2]),
                                    (__m256)_mm256_unpackhi_pd((__m256d)r[0], (__m256d)r[2]));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

#elif defined(__AVX512F__)

// Sixteen vectors become one.
KP_INLINE void store_sums(float* to, F32x16 (&rows)[16]) {
  __m512 r[16];
  for (int i = 0; i < 16; ++i) r[i] = rows[i].p[0];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    r[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[i], r[i + 8]), _mm512_unpackhi_ps(r[i], r[i + 8]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    r[i] = _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)r[i], (__m512d)r[i + 4]),
                         (__m512)_mm512_unpackhi_pd((__m512d)r[i], (__m512d)r[i + 4]));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    r[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(r[i], r[i + 2], 0x88), _mm512_shuffle_f32x4(r[i], r[i + 2], 0xdd));
  const __m512 sums =
      _mm512_add_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
  // Lane 8 a + 4 b + c of the sums: c = (bit 3, bit 2) of the row, b = bit 1, a = bit 0.
  const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);
  _mm512_storeu_ps(to, _mm512_permutexvar_ps(order, sums));
}

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
