// Weights of float8_e4m3fn on their way into a product: codes become numbers, exactly, and take the scale of
// their block. A number times its scale is rounded once, to float32 or to bf16 for tiles.
#pragma once

#include "kernels/fp8_linear.h"
#include "linear/parts.h"
#include "simd/float8.h"
#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

// Codes are decoded as halves, whose exponent is 8 larger than theirs; scales make up for it.
constexpr float kHalvesScale = 256.0f;

#if defined(__AVX512F__)

// Codes in the upper bytes of sixteen words, as 2^-8 of their numbers. A code's seven bits of magnitude are a
// half's, subnormal ones too, which this conversion keeps whatever the mode; of all codes it would take NaN
// for a number.
KP_INLINE F32x16 halves_of_codes(__m256i words) {
  const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f00));
  const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(INT16_MIN));
  const __m256i half = _mm256_or_si256(_mm256_srli_epi16(magnitude, 1), sign);
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f00));
  return {{(FloatPiece)_mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00)))}};
}

// Sixteen pairs of codes side by side: the first and the second ones, as 2^-8 of their numbers.
KP_INLINE void load_halves(const F8e4m3* pairs, F32x16& even, F32x16& odd) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
  even = halves_of_codes(_mm256_slli_epi16(words, 8));
  odd = halves_of_codes(words);
}

#else

// The numbers of all codes, times 2^-8.
struct CodeTable {
  float number[256];

  constexpr CodeTable() : number() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float value = (exponent ? 8 + mantissa : mantissa) / 8.0f / 64 / 256;
      for (int e = 1; e < exponent; ++e) value *= 2;
      if (exponent == 15 && mantissa == 7) value = __builtin_nanf("");
      number[code] = code & 128 ? -value : value;
    }
  }
};
constexpr CodeTable kCodeTable;

KP_INLINE void load_halves(const F8e4m3* pairs, F32x16& even, F32x16& odd) {
  float numbers[2][kLanes];
  for (int n = 0; n < kLanes; ++n) {
    numbers[0][n] = kCodeTable.number[pairs[2 * n].bits];
    numbers[1][n] = kCodeTable.number[pairs[2 * n + 1].bits];
  }
  even = load(numbers[0]);
  odd = load(numbers[1]);
}

#endif

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

// The scales of the 32 outputs of a panel, times kHalvesScale, in the column of blocks that holds some k.
class PanelScales {
  const View& scales;
  const int64_t block_k;
  const float* rows[kPanelColumns];
  alignas(64) float values[kPanelColumns];
  int64_t from = 0, until = 0;  // the k that they hold for

 public:
  // Outputs behind the last one, which nobody sees, take its scale.
  PanelScales(const Fp8LinearArguments& call, int64_t p) : scales(call.scales), block_k(call.block_k) {
    for (int64_t n = 0; n < kPanelColumns; ++n) {
      const int64_t output = least(p * kPanelColumns + n, call.out.sizes[1] - 1);
      rows[n] = at<float>(scales, output / call.block_n);
    }
  }

  KP_INLINE bool hold(int64_t k) const { return from <= k && k < until; }

  // So do columns behind the last one.
  KP_NOINLINE void move_to(int64_t k) {
    const int64_t column = least(k / block_k, scales.sizes[1] - 1);
    from = column * block_k;
    until = column == scales.sizes[1] - 1 ? INT64_MAX : from + block_k;
    for (int64_t n = 0; n < kPanelColumns; ++n)
      values[n] = rows[n][column * scales.strides[1]] * kHalvesScale;
  }

  KP_INLINE F32x16 at_k(int64_t k, int half) {
    if (!hold(k)) move_to(k);
    return load(values + half * kLanes);
  }
};

// `blocks` blocks of a panel, of which the first begins at k, as numbers times scales.
template <class To>
KP_NOINLINE void decode_blocks(const F8e4m3* codes, int64_t k, int64_t blocks, PanelScales& scales, To* to) {
  for (const int64_t end = k + blocks * kBlockK; k < end; k += kBlockK)
    for (int half = 0; half < 2; ++half)
      for (int64_t i = 0; i < kBlockK; i += 2, codes += kPair, to += kPair) {
        __builtin_prefetch(reinterpret_cast<const char*>(codes) + kStreamAhead);
        F32x16 even, odd;
        load_halves(codes, even, odd);
        store_outputs(to, even * scales.at_k(k + i, half), odd * scales.at_k(k + i + 1, half));
      }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
