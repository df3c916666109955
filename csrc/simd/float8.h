// Loads of float8 elements, the dtypes that only a cache may have.
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair {

struct F8e4m3 {
  uint8_t bits;
};
struct F8e5m2 {
  uint8_t bits;
};

}  // namespace kernelpair

namespace kernelpair::KP_TIER {
namespace {

KP_INLINE I32x16 load_u8(const void* from) {
#if defined(__AVX512F__)
  return {{(IntPiece)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)))}};
#elif defined(__AVX2__)
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)_mm256_cvtepu8_epi32(_mm_loadl_epi64(
                    reinterpret_cast<const __m128i*>(static_cast<const char*>(from) + i * kPieceLanes))));
  return r;
#else
  uint8_t bytes[kLanes];
  int32_t wide[kLanes];
  __builtin_memcpy(bytes, from, sizeof bytes);
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = bytes[lane];
  I32x16 r;
  __builtin_memcpy(&r, wide, sizeof r);
  return r;
#endif
}

#if !defined(__AVX512F__) && defined(__F16C__)

// Sixteen numbers of 16 bits, which are halves, as floats.
KP_INLINE F32x16 halves_to_float(__m256i halves) {
  return {{(FloatPiece)_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
           (FloatPiece)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}};
}

// Seven magnitude bits moved to a half's place are too small by 2^8; a half has subnormal numbers of its own.
KP_INLINE F32x16 load(const F8e4m3* from) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i magnitude_bits = _mm256_set1_epi16(0x7f << 7);
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(int16_t(0xbf80)));
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, magnitude_bits), magnitude_bits);
  return halves_to_float(_mm256_or_si256(halves, _mm256_srli_epi16(nan, 1))) * splat(256);
}

// The upper byte of a half.
KP_INLINE F32x16 load(const F8e5m2* from) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return halves_to_float(_mm256_slli_epi16(codes, 8));
}

#else

// Seven magnitude bits moved to a float's place are too small by 2^120; a subnormal's three bits count
// eighths of 2^-6.
KP_INLINE F32x16 load(const F8e4m3* from) {
  const I32x16 bits = load_u8(from), magnitude = bits & splat_int(0x7f);
  const F32x16 normal = as_float(shift_left<20>(magnitude) + splat_int(120 << 23));
  const F32x16 subnormal = to_float(magnitude) * splat(1.0f / 512);
  const I32x16 value = as_int(select(less(magnitude, splat_int(8)), subnormal, normal));
  const I32x16 number = select(less(magnitude, splat_int(0x7f)), value, splat_int(0x7fc00000));
  return as_float(number | shift_left<24>(bits & splat_int(0x80)));
}

// The upper byte of a half.
KP_INLINE F32x16 load(const F8e5m2* from) {
  F16 halves[kLanes];
  store_u16(halves, shift_left<8>(load_u8(from)));
  return load(halves);
}

#endif

// The first `lanes` elements, the others 0.
template <class T>
KP_INLINE F32x16 load_byte_lanes(const T* from, int lanes) {
  T buffer[kLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) buffer[lane] = from[lane];
  return load(buffer);
}
KP_INLINE F32x16 load(const F8e4m3* from, int lanes) {
  return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from);
}
KP_INLINE F32x16 load(const F8e5m2* from, int lanes) {
  return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
