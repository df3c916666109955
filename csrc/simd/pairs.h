// Thirty-two elements as two vectors: in order, or the even and the odd ones apart.
#pragma once

#include <type_traits>

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kPair = 32;  // elements of two vectors

struct TwoPairs {
  I32x16 first, second;
};

KP_INLINE F32x16 low_half(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
KP_INLINE F32x16 high_half(I32x16 pairs) {
  return as_float(pairs & splat_int(static_cast<int32_t>(0xffff0000u)));
}

// a0 a1 .. and b0 b1 .. become a0 b0 a1 .. (in a) and a8 b8 a9 .. (in b).
KP_SHORT_INLINE void interleave(F32x16& a, F32x16& b) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512 first = _mm512_permutex2var_ps(a.p[0], low, b.p[0]);
  b.p[0] = (FloatPiece)_mm512_permutex2var_ps(a.p[0], _mm512_add_epi32(low, _mm512_set1_epi32(8)), b.p[0]);
  a.p[0] = (FloatPiece)first;
#elif defined(__AVX2__)
  F32x16 both[2];
  KP_EACH_PIECE({
    const __m256 low = _mm256_unpacklo_ps(a.p[i], b.p[i]), high = _mm256_unpackhi_ps(a.p[i], b.p[i]);
    both[i] = {{(FloatPiece)_mm256_permute2f128_ps(low, high, 0x20),
                (FloatPiece)_mm256_permute2f128_ps(low, high, 0x31)}};
  });
  a = both[0];
  b = both[1];
#else
  float even[16], odd[16], both[32];
  store(even, a);
  store(odd, b);
  for (int i = 0; i < 16; ++i) {
    both[2 * i] = even[i];
    both[2 * i + 1] = odd[i];
  }
  a = load(both);
  b = load(both + 16);
#endif
}

// Sixteen pairs of elements side by side: the first and the second ones.
KP_INLINE void load_split(const Bf16* pairs, F32x16& even, F32x16& odd) {
  const I32x16 both = load_dwords(pairs);
  even = low_half(both);
  odd = high_half(both);
}

#if defined(__AVX512F__)

// a0 b0 a1 .. and a8 b8 a9 .. become a0 a1 .. and b0 b1 ..
KP_INLINE void separate(F32x16 low, F32x16 high, F32x16& even, F32x16& odd) {
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i second = _mm512_or_si512(first, _mm512_set1_epi32(1));
  even.p[0] = (FloatPiece)_mm512_permutex2var_ps(low.p[0], first, high.p[0]);
  odd.p[0] = (FloatPiece)_mm512_permutex2var_ps(low.p[0], second, high.p[0]);
}

#endif

KP_INLINE void load_split(const F16* pairs, F32x16& even, F32x16& odd) {
#if defined(__AVX512F__)
  separate(load(pairs), load(pairs + kLanes), even, odd);
#elif defined(__AVX2__)
  // The even ones of a lane into its lower half, then those of both lanes into the lower lane.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const I32x16 both = load_dwords(pairs);
  KP_EACH_PIECE({
    const __m256i halves =
        _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)both.p[i], order), _MM_SHUFFLE(3, 1, 2, 0));
    even.p[i] = (FloatPiece)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    odd.p[i] = (FloatPiece)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  });
#else
  const I32x16 both = load_dwords(pairs);
  F16 halves[2 * kLanes];
  store_u16(halves, both & splat_int(0xffff));
  store_u16(halves + kLanes, shift_right<16>(both));
  even = load(halves);
  odd = load(halves + kLanes);
#endif
}

KP_INLINE void load_split(const float* pairs, F32x16& even, F32x16& odd) {
#if defined(__AVX512F__)
  separate(load(pairs), load(pairs + kLanes), even, odd);
#elif defined(__AVX2__)
  KP_EACH_PIECE({
    // Of both lanes side by side, then the lanes in order.
    const __m256 first = _mm256_loadu_ps(pairs + i * kLanes),
                 second = _mm256_loadu_ps(pairs + i * kLanes + 8);
    const __m256 evens = _mm256_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0));
    const __m256 odds = _mm256_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1));
    even.p[i] = (FloatPiece)_mm256_permute4x64_pd((__m256d)evens, _MM_SHUFFLE(3, 1, 2, 0));
    odd.p[i] = (FloatPiece)_mm256_permute4x64_pd((__m256d)odds, _MM_SHUFFLE(3, 1, 2, 0));
  });
#else
  float lanes[2][kLanes];
  for (int n = 0; n < kLanes; ++n) lanes[0][n] = pairs[2 * n], lanes[1][n] = pairs[2 * n + 1];
  even = load(lanes[0]);
  odd = load(lanes[1]);
#endif
}

// In the order that costs least, the same for all elements of a dtype; restore_order undoes it.
template <class T>
KP_INLINE void load_pair(const T* from, F32x16& first, F32x16& second) {
  if constexpr (std::is_same_v<T, Bf16>) {
    load_split(from, first, second);
  } else {
    first = load(from);
    second = load(from + kLanes);
  }
}

// The first `live` of 32 elements, zeros for the others.
template <class T>
KP_INLINE void load_pair(const T* from, int64_t live, F32x16& first, F32x16& second) {
  T padded[kPair] = {};
  __builtin_memcpy(padded, from, live * sizeof(T));
  load_pair(padded, first, second);
}

template <class T>
KP_INLINE void restore_order(F32x16& first, F32x16& second) {
  if constexpr (std::is_same_v<T, Bf16>) interleave(first, second);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
