// Thirty-two or sixty-four codes of float8_e4m3fn as the numbers that they stand for, exactly.
#pragma once

#include <type_traits>

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

#if defined(__AVX2__) && !defined(__AVX512F__)

// The bytes of these numbers from four bits of a code: of all but the smallest sixteen, and what those change.
struct CodeNibbles {
  alignas(16) uint8_t low[16], high[16], small_low[16], small_high[16];

  constexpr CodeNibbles() : low(), high(), small_low(), small_high() {
    for (int four = 0; four < 16; ++four) {
      low[four] = static_cast<uint8_t>(CodeTable::number(16 + four));
      high[four] = static_cast<uint8_t>(CodeTable::number(8 + 16 * (four % 8)) >> 8);
      small_low[four] = static_cast<uint8_t>(low[four] ^ CodeTable::number(four));
      small_high[four] = static_cast<uint8_t>(high[0] ^ CodeTable::number(four) >> 8);
    }
  }
};
constexpr CodeNibbles kCodeNibbles;

#endif

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
#elif defined(__AVX2__)
  // The lower byte of a number depends on a code's last four bits, the upper one on the others; where those are 0 the number
  // may be subnormal, and both bytes depend on the last four. An index above 127 makes the shuffle give 0.
  const auto table = [](const uint8_t* bytes) KP_LAMBDA_INLINE {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  };
  const __m256i in_order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i bytes = _mm256_permute4x64_epi64(in_order, _MM_SHUFFLE(3, 1, 2, 0));  // as unpack reads them
  const __m256i fours = _mm256_set1_epi8(0x0f), magnitude_bits = _mm256_set1_epi8(0x7f);
  const __m256i last = _mm256_and_si256(bytes, fours), magnitude = _mm256_and_si256(bytes, magnitude_bits);
  const __m256i first = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), fours);
  const __m256i small = _mm256_or_si256(_mm256_cmpgt_epi8(magnitude, fours), last);
  const __m256i nan = _mm256_cmpeq_epi8(magnitude, magnitude_bits);
  const __m256i low = _mm256_xor_si256(_mm256_shuffle_epi8(table(kCodeNibbles.low), last),
                                       _mm256_shuffle_epi8(table(kCodeNibbles.small_low), small));
  const __m256i high = _mm256_xor_si256(_mm256_shuffle_epi8(table(kCodeNibbles.high), first),
                                        _mm256_shuffle_epi8(table(kCodeNibbles.small_high), small));
  const __m256i signed_high =
      _mm256_or_si256(_mm256_or_si256(high, nan), _mm256_andnot_si256(magnitude_bits, bytes));
  return {
      {(IntPiece)_mm256_unpacklo_epi8(low, signed_high), (IntPiece)_mm256_unpackhi_epi8(low, signed_high)}};
#else
  uint16_t numbers[kPair];
  for (int i = 0; i < kPair; ++i) {
    const int code = codes[i].bits;
    numbers[i] = static_cast<uint16_t>(kCodeTable.bits[code & 127] | (code & 128) << 8);
  }
  return load_dwords(numbers);
#endif
}

#if defined(__AVX512VBMI__)

// A bf16 for each code without a sign as two bytes, for permutations of two registers that read 128 of them.
struct CodeBytes {
  alignas(64) uint8_t low[128], high[128];

  static constexpr CodeBytes numbers() {
    CodeBytes made{};
    for (int code = 0; code < 128; ++code) {
      made.low[code] = static_cast<uint8_t>(CodeTable::number(code));
      made.high[code] = static_cast<uint8_t>(CodeTable::number(code) >> 8);
    }
    return made;
  }

  // The numbers times a scale, rounded.
  KP_NOINLINE void fill(F32x16 scale) {
    for (int code = 0; code < 128; code += kPair) {
      const auto* number = reinterpret_cast<const Bf16*>(kCodeTable.bits + code);
      Bf16 scaled[kPair];
      store(scaled, load(number) * scale);
      store(scaled + kLanes, load(number + kLanes) * scale);
      const __m512i words = _mm512_loadu_si512(scaled);
      _mm256_store_si256(reinterpret_cast<__m256i*>(low + code), _mm512_cvtepi16_epi8(words));
      _mm256_store_si256(reinterpret_cast<__m256i*>(high + code),
                         _mm512_cvtepi16_epi8(_mm512_srli_epi16(words, 8)));
    }
  }

  // What 64 codes stand for: of the first 32, and of the others.
  KP_INLINE TwoPairs of(const void* codes) const {
    // In each lane four words of the first 32 codes and four of the others, for bytes unpack by lanes.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    return of_lanes(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes)));
  }

  // The first eight and the third eight of each 32, and the others: what a permutation less leaves.
  KP_INLINE TwoPairs crossed(const void* codes) const { return of_lanes(_mm512_loadu_si512(codes)); }

 private:
  KP_INLINE TwoPairs of_lanes(__m512i bytes) const {
    const auto number_bytes = [&](const uint8_t* table) {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table), bytes, _mm512_load_si512(table + 64));
    };
    constexpr int kXorSecondAndThird = 0x78;
    const __m512i sign = _mm512_set1_epi8(INT8_MIN), smaller = number_bytes(low);
    const __m512i larger = _mm512_ternarylogic_epi32(number_bytes(high), bytes, sign, kXorSecondAndThird);
    return {{{(IntPiece)_mm512_unpacklo_epi8(smaller, larger)}},
            {{(IntPiece)_mm512_unpackhi_epi8(smaller, larger)}}};
  }
};
constexpr CodeBytes kCodeBytes = CodeBytes::numbers();

// Products of one row with the numbers of 64 codes, crossed: each vector has those of sixteen outputs' one half at two
// pairs of k. On Intel's CPUs permutations decide, and one less takes 0.94 of the time of a row.
struct CrossedCodes {
  KP_INLINE static TwoPairs numbers(const void* codes) { return kCodeBytes.crossed(codes); }

  // What meets them: the first dword in the lower half, the second one in the upper half.
  KP_INLINE static I32x16 two_dwords(const char* from) {
    const auto* dwords = reinterpret_cast<const float*>(from);
    const __m512 first = _mm512_broadcastss_ps(_mm_load_ss(dwords));
    return {{(IntPiece)_mm512_mask_broadcastss_ps(first, 0xff00, _mm_load_ss(dwords + 1))}};
  }

  // The sums of the outputs in order, both halves of each added.
  KP_INLINE static F32x16 in_order(F32x16 first, F32x16 second) {
    const __m512 low = _mm512_shuffle_f32x4(first.p[0], second.p[0], _MM_SHUFFLE(1, 0, 1, 0));
    const __m512 high = _mm512_shuffle_f32x4(first.p[0], second.p[0], _MM_SHUFFLE(3, 2, 3, 2));
    const __m512 sums = _mm512_add_ps(low, high);
    return {{(FloatPiece)_mm512_shuffle_f32x4(sums, sums, _MM_SHUFFLE(3, 1, 2, 0))}};
  }
};

// A table of numbers times a scale, made anew when `key`, what the scale belongs to, is another.
class ScaledCodes {
  CodeBytes table;
  int64_t made_for = -1;

 public:
  static constexpr bool kHasTable = true;
  KP_INLINE const CodeBytes* of_scale(float scale, int64_t key) {
    if (made_for != key) table.fill(splat(scale)), made_for = key;
    return &table;
  }
};

#else

struct ScaledCodes {
  static constexpr bool kHasTable = false;
};
struct CrossedCodes {};

#endif

// The numbers of 64 codes in bf16: of the first 32, and of the others.
KP_INLINE TwoPairs load_two_numbers(const F8e4m3* codes) {
#if defined(__AVX512VBMI__)
  return kCodeBytes.of(codes);
#else
  return {load_numbers(codes), load_numbers(codes + kPair)};
#endif
}

// The numbers of `count` codes of either kind, in a dtype that holds them.
template <class T, class Code>
KP_NOINLINE void widen_codes(const Code* codes, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, Bf16> && std::is_same_v<Code, F8e4m3>)
    for (; i + 2 * kPair <= count; i += 2 * kPair) {
      const TwoPairs numbers = load_two_numbers(codes + i);
      store_dwords(to + i, numbers.first);
      store_dwords(to + i + kPair, numbers.second);
    }
  for (; i < count; i += kLanes) {
    const int lanes = lanes_left(count - i);
    store(to + i, load(codes + i, lanes), lanes);
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
