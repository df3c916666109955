// Bytes that hold two codes of four bits each, the first in the low half: as whole numbers that bf16 holds, and as
// quads of bytes for exact sums. A row of sixteen bytes holds sixteen outputs at two neighbouring k.
#pragma once

#include "simd/bytes.h"
#include "simd/float8.h"
#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(__AVX512F__)

constexpr int kPoints = 16;  // a difference of a code and a zero point is at least -kPoints

// The bits in bf16 of the whole numbers from -16 to 15.
struct DifferenceTable {
  alignas(64) uint16_t bits[2 * kPoints];

  constexpr DifferenceTable() : bits() {
    for (int i = 0; i < 2 * kPoints; ++i)
      bits[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(i - kPoints)) >> 16);
  }
};
constexpr DifferenceTable kDifferenceTable;

// The zero points of sixteen outputs, for load_differences: 16 - z in both halves of a dword.
KP_INLINE I32x16 spread_points(const uint8_t* zeros) {
  const I32x16 points = splat_int(kPoints) - load_u8(zeros);
  return points | shift_left<16>(points);
}

// Codes minus zero points of a row of bytes, exactly, in bf16: the first k below the second one.
KP_INLINE I32x16 load_differences(const uint8_t* row, I32x16 points) {
  const I32x16 bytes = load_u8(row);
  const I32x16 codes = (bytes | shift_left<12>(bytes)) & splat_int(0x000f000f);
  const I32x16 places = codes + points;  // 0 .. 31 in each half: no carry
  return {
      {(IntPiece)_mm512_permutexvar_epi16((__m512i)places.p[0], _mm512_load_si512(kDifferenceTable.bits))}};
}

// The same as floats, of the first k and of the second one.
KP_INLINE void load_differences(const uint8_t* row, I32x16 points, F32x16& first, F32x16& second) {
  const I32x16 both = load_differences(row, points);
  first = low_half(both);
  second = high_half(both);
}

#else

// The zero points of sixteen outputs, for load_differences.
KP_INLINE I32x16 spread_points(const uint8_t* zeros) { return load_u8(zeros); }

// Codes minus zero points of a row of bytes, of the first k and of the second one.
KP_INLINE void load_differences(const uint8_t* row, I32x16 points, F32x16& first, F32x16& second) {
  const I32x16 bytes = load_u8(row);
  first = to_float((bytes & splat_int(15)) - points);
  second = to_float(shift_right<4>(bytes) - points);
}

// The same, exactly, in bf16: the first k below the second one.
KP_INLINE I32x16 load_differences(const uint8_t* row, I32x16 points) {
  F32x16 first, second;
  load_differences(row, points, first, second);
  return shift_right<16>(as_int(first)) | as_int(second);
}

#endif

// Four rows of bytes as quads of each of sixteen outputs: the codes of k, k + 2, k + 4, k + 6 and the ones behind
// them.
struct CodeQuads {
  I32x16 even, odd;
};

KP_INLINE CodeQuads load_code_quads(const uint8_t* rows) {
#if defined(__AVX512F__)
  // Four dwords of each row are brought together, then the bytes of each output.
  const __m512i apart = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i fours = _mm512_permutexvar_epi32(apart, _mm512_loadu_si512(rows));
  const I32x16 quads = {{(IntPiece)_mm512_shuffle_epi8(fours, bytes)}};
#elif defined(__AVX2__)
  // Bytes of two rows become words, words of four rows dwords; each time by halves.
  __m128i row[4];
  for (int i = 0; i < 4; ++i) row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows) + i);
  const auto four = [](__m128i two, __m128i others) KP_LAMBDA_INLINE {
    return _mm256_set_m128i(_mm_unpackhi_epi16(two, others), _mm_unpacklo_epi16(two, others));
  };
  const I32x16 quads = {
      {(IntPiece)four(_mm_unpacklo_epi8(row[0], row[1]), _mm_unpacklo_epi8(row[2], row[3])),
       (IntPiece)four(_mm_unpackhi_epi8(row[0], row[1]), _mm_unpackhi_epi8(row[2], row[3]))}};
#else
  const I32x16 quads = load_u8(rows) | shift_left<8>(load_u8(rows + 16)) |
                       shift_left<16>(load_u8(rows + 32)) | shift_left<24>(load_u8(rows + 48));
#endif
  const I32x16 mask = splat_int(0x0f0f0f0f);
  return {quads & mask, shift_right<4>(quads) & mask};
}

// The same of zero points: the point of each output in the four bytes of its quads.
KP_INLINE I32x16 quads_of_points(const uint8_t* zeros) { return times(load_u8(zeros), 0x01010101); }

// Codes minus zero points, byte by byte.
KP_INLINE I32x16 subtract_points(I32x16 codes, I32x16 points) {
  using Bytes = uint8_t __attribute__((vector_size(kVectorBytes)));
  KP_EACH_PIECE(codes.p[i] = (IntPiece)((Bytes)codes.p[i] - (Bytes)points.p[i]));
  return codes;
}

// Eight bytes apart: those of even places, then the others.
KP_INLINE void split_even_odd(const int8_t* from, int8_t* to) {
  using Bytes = int8_t __attribute__((vector_size(8)));
  Bytes bytes;
  __builtin_memcpy(&bytes, from, sizeof bytes);
  bytes = __builtin_shufflevector(bytes, bytes, 0, 2, 4, 6, 1, 3, 5, 7);
  __builtin_memcpy(to, &bytes, sizeof bytes);
}

// Four bytes of a row of x, as add_codes reads them.
KP_INLINE void store_quad(const int8_t* q, uint32_t* to) {
  spread_quad(q, to);
  if constexpr (kQuadShift != 0) *to ^= 0x80808080u;  // codes are the unsigned factor here
}

// Each lane: sum + the products of four codes and a quad of x. Exact: nothing comes near the end of 16 bits.
KP_INLINE I32x16 add_codes(I32x16 sums, const uint32_t* quad, I32x16 codes) {
#if defined(__AVX512VNNI__)
  const __m512i row = _mm512_set1_epi32(static_cast<int>(*quad));
  return {{(IntPiece)_mm512_dpbusd_epi32((__m512i)sums.p[0], (__m512i)codes.p[0], row)}};
#else
  const I32x16 low = splat_int(0x00ff00ff), shifted = shift_right<8>(codes);
  const I32x16 even = splat_int(static_cast<int32_t>(quad[0])),
               odd = splat_int(static_cast<int32_t>(quad[1]));
  KP_EACH_PIECE({
    sums.p[i] += pair_products(codes.p[i] & low.p[i], even.p[i]);
    sums.p[i] += pair_products(shifted.p[i] & low.p[i], odd.p[i]);
  });
  return sums;
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
