// Thirty-two codes of float8_e4m3fn as the numbers that they stand for, exactly.
#pragma once

#include "simd/float8.h"
#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

// The bits in bf16 of the numbers of all codes without a sign.
struct CodeTable {
  alignas(64) uint16_t bits[128];

  constexpr CodeTable() : bits() {
    for (int code = 0; code < 128; ++code) bits[code] = number(code);
  }

  static constexpr uint16_t number(int code) {
    if (code == 0x7f) return 0x7fc0;
    if (code >= 8) return static_cast<uint16_t>((code << 4) + (120 << 7));
    if (code == 0) return 0;
    int exponent = 121, mantissa = code;  // a subnormal one counts 2^-9
    for (; mantissa < 8; mantissa *= 2) --exponent;
    return static_cast<uint16_t>(exponent << 7 | (mantissa & 7) << 4);
  }
};
constexpr CodeTable kCodeTable;

// The numbers of 32 codes in bf16.
KP_INLINE I32x16 load_numbers(const F8e4m3* codes) {
#if defined(__AVX512F__)
  const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const uint16_t* bits = kCodeTable.bits;  // of which a permutation of two registers reads 64
  const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(bits), words, _mm512_load_si512(bits + 32));
  const __m512i high =
      _mm512_permutex2var_epi16(_mm512_load_si512(bits + 64), words, _mm512_load_si512(bits + 96));
  const __mmask32 upper = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
  const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(words, 8), _mm512_set1_epi16(INT16_MIN));
  return {{(IntPiece)_mm512_or_si512(_mm512_mask_mov_epi16(low, upper, high), sign)}};
#else
  uint16_t numbers[kPair];
  for (int i = 0; i < kPair; ++i) {
    const int code = codes[i].bits;
    numbers[i] = static_cast<uint16_t>(kCodeTable.bits[code & 127] | (code & 128) << 8);
  }
  return load_dwords(numbers);
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
