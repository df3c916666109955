// Bytes in vectors: sixteen sums of four products each, of weights in int8 and a row's bytes, and rounding to
// bytes.
//
// Weights are quads: sixteen outputs side by side, four neighbouring k of each in a dword. A quad of a row is
// kQuadDwords dwords, made once by spread_quad, and meets as many parts of the weights, one after the other. With
// VNNI that is q + 128, for one factor of VPDPBUSD is unsigned: the sums come out larger by kQuadShift times the sum
// of the weights. Other tiers widen both factors to 16 bits, where two products of bytes and their sum have room:
// nothing saturates anywhere.
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// Modulo 2^32, as all sums here.
KP_INLINE I32x16 times(I32x16 a, int32_t factor) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)((UintPiece)a.p[i] * static_cast<uint32_t>(factor)));
  return r;
}

#if defined(__AVX512VNNI__)

constexpr int kQuadDwords = 1;
constexpr int32_t kQuadShift = 128;

template <int kPart>
KP_INLINE I32x16 load_quads(const int8_t* from) {
  return load_dwords(from);
}

KP_INLINE void spread_quad(const int8_t* q, uint32_t* to) {
  __builtin_memcpy(to, q, 4);
  *to ^= 0x80808080u;
}

// Sixteen of them.
KP_INLINE void spread_quads(const int8_t* q, uint32_t* to) {
  store_dwords(to, load_dwords(q) ^ splat_int(static_cast<int32_t>(0x80808080u)));
}

KP_INLINE I32x16 add_products(I32x16 sums, uint32_t quad, I32x16 weights) {
  const __m512i row = _mm512_set1_epi32(static_cast<int>(quad));
  return {{(IntPiece)_mm512_dpbusd_epi32((__m512i)sums.p[0], row, (__m512i)weights.p[0])}};
}

#else

constexpr int kQuadDwords = 2;
constexpr int32_t kQuadShift = 0;

// Part 0: k and k + 2 of each output, in 16 bits; part 1: k + 1 and k + 3.
template <int kPart>
KP_INLINE I32x16 load_quads(const int8_t* from) {
  using Words = int16_t __attribute__((vector_size(kVectorBytes)));
  using UnsignedWords = uint16_t __attribute__((vector_size(kVectorBytes)));
  I32x16 bytes = load_dwords(from);
  KP_EACH_PIECE({
    const UnsignedWords words = kPart ? (UnsignedWords)bytes.p[i] : (UnsignedWords)bytes.p[i] << 8;
    bytes.p[i] = (IntPiece)((Words)words >> 8);
  });
  return bytes;
}

KP_INLINE void spread_quad(const int8_t* q, uint32_t* to) {
  to[0] = static_cast<uint16_t>(q[0]) | static_cast<uint32_t>(static_cast<uint16_t>(q[2])) << 16;
  to[1] = static_cast<uint16_t>(q[1]) | static_cast<uint32_t>(static_cast<uint16_t>(q[3])) << 16;
}

KP_INLINE void spread_quads(const int8_t* q, uint32_t* to) {
  for (int lane = 0; lane < kLanes; ++lane) spread_quad(q + 4 * lane, to + kQuadDwords * lane);
}

// Each dword: the sum of the products of two pairs of 16 bits.
KP_INLINE IntPiece pair_products(IntPiece a, IntPiece b) {
#if defined(__AVX512BW__)
  return (IntPiece)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (IntPiece)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (IntPiece)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const IntPiece a_low = (IntPiece)((UintPiece)a << 16) >> 16, b_low = (IntPiece)((UintPiece)b << 16) >> 16;
  return a_low * b_low + (a >> 16) * (b >> 16);
#endif
}

KP_INLINE I32x16 add_products(I32x16 sums, uint32_t quad, I32x16 weights) {
  const I32x16 row = splat_int(static_cast<int32_t>(quad));
  KP_EACH_PIECE(weights.p[i] = pair_products(weights.p[i], row.p[i]));
  sums = sums + weights;
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Else gcc adds up the products of both parts first, and has no registers for them.
  KP_EACH_PIECE(asm("" : "+x"(sums.p[i])));
#endif
  return sums;
}

#endif

// To the nearest whole number, halves to even, for |a| < 2^22: the addition leaves it in the last bits.
KP_INLINE I32x16 round_to_int(F32x16 a) {
  constexpr float kThreeHalves = 12582912.0f;  // 1.5 x 2^23: its last place is 1
  return as_int(a + splat(kThreeHalves)) - as_int(splat(kThreeHalves));
}

KP_INLINE I32x16 clamp_to_bytes(I32x16 a) {
  const I32x16 low = splat_int(INT8_MIN), high = splat_int(INT8_MAX);
  a = select(less(a, low), low, a);
  return select(less(high, a), high, a);
}

// The lowest byte of the first `lanes` lanes.
KP_INLINE void store_bytes(int8_t* to, I32x16 a, int lanes) {
#if defined(__AVX512F__)
  _mm512_mask_cvtepi32_storeu_epi8(to, first_lanes(lanes).bits, (__m512i)a.p[0]);
#else
  int32_t wide[kLanes];
  store_dwords(wide, a);
  for (int lane = 0; lane < lanes; ++lane) to[lane] = static_cast<int8_t>(wide[lane]);
#endif
}

// Of all lanes.
KP_INLINE void store_bytes(int8_t* to, I32x16 a) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)a.p[0]));
#elif defined(__AVX2__)
  uint16_t words[kLanes];
  store_u16(words, a & splat_int(0xff));
  const auto* halves = reinterpret_cast<const __m128i*>(words);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi16(_mm_loadu_si128(halves), _mm_loadu_si128(halves + 1)));
#else
  store_bytes(to, a, kLanes);
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
