// Rows thirty-two elements at a time, where each element keeps to itself. Much of a row's work is converting to and from
// bf16; of two neighbours in a dword it costs half as much as of elements in order.
//
//   each_wide<true>(0, n, [&](int64_t d, auto... lanes) {     // lanes: Wide, or as each_vector() gives them
//     store(to + d, load(from + d, lanes...) * factor, lanes...);
//   });
#pragma once

#include <type_traits>

#include "simd/each_vector.h"
#include "simd/pairs.h"

namespace kernelpair::KP_TIER {
namespace {

struct Wide {};
struct WideInOrder {};  // for kernels whose other operands are in order

// Whether one instruction rounds two vectors to bf16.
#if defined(__AVX512BF16__)
constexpr bool kRoundsBf16 = true;
#else
constexpr bool kRoundsBf16 = false;
#endif

// In the order of load(from, Wide), the same for all elements of a dtype.
struct F32x32 {
  F32x16 first, second;
};

KP_INLINE F32x32 operator+(F32x32 a, F32x32 b) { return {a.first + b.first, a.second + b.second}; }
KP_INLINE F32x32 operator+(F32x32 a, F32x16 b) { return {a.first + b, a.second + b}; }
KP_INLINE F32x32 operator-(F32x32 a) { return {-a.first, -a.second}; }
KP_INLINE F32x32 operator*(F32x32 a, F32x32 b) { return {a.first * b.first, a.second * b.second}; }
KP_INLINE F32x32 operator*(F32x32 a, F32x16 b) { return {a.first * b, a.second * b}; }
KP_INLINE F32x32 fma(F32x32 a, F32x32 b, F32x32 c) {
  return {fma(a.first, b.first, c.first), fma(a.second, b.second, c.second)};
}

// f of each vector.
template <class F>
KP_INLINE F32x16 each_half(F32x16 a, const F& f) {
  return f(a);
}
template <class F>
KP_INLINE F32x32 each_half(F32x32 a, const F& f) {
  return {f(a.first), f(a.second)};
}

// Whether load(from, Wide) takes the elements in order, as it does floats, so that the two can be multiplied.
template <class T>
constexpr bool kWideInOrder = !std::is_same_v<T, Bf16>;

KP_INLINE F32x32 load(const Bf16* from, Wide) {
  F32x32 r;
  load_split(from, r.first, r.second);
  return r;
}

#if defined(__AVX512BF16__)

KP_INLINE __m512i rounded(F32x32 a) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)a.second.p[0], (__m512)a.first.p[0]);
}
// Pairs of neighbours.
KP_INLINE I32x16 rounded_pairs(F32x32 a) {
  const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i order =
      _mm512_or_si512(even, _mm512_slli_epi32(_mm512_or_si512(even, _mm512_set1_epi32(16)), 16));
  return {{(IntPiece)_mm512_permutexvar_epi16(order, rounded(a))}};
}
KP_INLINE void store(Bf16* to, F32x32 a, Wide) { store_dwords(to, rounded_pairs(a)); }
KP_INLINE F32x32 store_and_load(Bf16* to, F32x32 a, Wide) {
  const I32x16 pairs = rounded_pairs(a);
  store_dwords(to, pairs);
  return {low_half(pairs), high_half(pairs)};
}

#else

KP_NOINLINE void store_nan(Bf16* to, F32x32 a) {
  store_dwords(to, shift_right<16>(bf16_upper(a.first)) | as_int(high_half(bf16_upper(a.second))));
}
// Pairs of neighbours, where no lane is NaN.
KP_INLINE I32x16 rounded_pairs(F32x32 a) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Both vectors at once, as 16-bit halves: one is added to what is kept where what is cut off is more than a
  // half, or a half beside an odd one.
  const __m256i one = _mm256_set1_epi16(1), more_than_half = _mm256_set1_epi16(INT16_MIN + 1);
  I32x16 r;
  KP_EACH_PIECE({
    const __m256i first = (__m256i)a.first.p[i], second = (__m256i)a.second.p[i];
    const __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), second, 0xaa);
    const __m256i cut_off = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
    const __m256i least = _mm256_sub_epi16(more_than_half, _mm256_and_si256(kept, one));
    const __m256i up = _mm256_cmpeq_epi16(_mm256_max_epu16(cut_off, least), cut_off);
    r.p[i] = (IntPiece)_mm256_sub_epi16(kept, up);
  });
  return r;
#else
  return shift_right<16>(bf16_upper_of_number(a.first)) | as_int(high_half(bf16_upper_of_number(a.second)));
#endif
}
// NaN takes a way of its own: it is rare, and to leave it as it is costs as much as to round the others.
KP_INLINE void store(Bf16* to, F32x32 a, Wide) {
  if (__builtin_expect(any(unordered(a.first, a.second)), false)) return store_nan(to, a);
  store_dwords(to, rounded_pairs(a));
}
KP_INLINE F32x32 store_and_load(Bf16* to, F32x32 a, Wide) {
  if (__builtin_expect(any(unordered(a.first, a.second)), false)) {
    store_nan(to, a);
    return load(to, Wide{});
  }
  const I32x16 pairs = rounded_pairs(a);
  store_dwords(to, pairs);
  return {low_half(pairs), high_half(pairs)};
}

#endif

template <class T>
KP_INLINE F32x32 load(const T* from, WideInOrder) {
  return {load(from), load(from + kLanes)};
}
template <class T>
KP_INLINE void store(T* to, F32x32 a, WideInOrder) {
  store(to, a.first);
  store(to + kLanes, a.second);
}
#if defined(__AVX512BF16__)
KP_INLINE void store(Bf16* to, F32x32 a, WideInOrder) { store_dwords(to, {{(IntPiece)rounded(a)}}); }
#endif

template <class T>
KP_INLINE F32x32 load(const T* from, Wide) {
  return load(from, WideInOrder{});
}
template <class T>
KP_INLINE void store(T* to, F32x32 a, Wide) {
  store(to, a, WideInOrder{});
}

// Stores, and returns what was stored.
template <class T, class Vector, class... Lanes>
KP_INLINE Vector store_and_load(T* to, Vector a, Lanes... lanes) {
  store(to, a, lanes...);
  return load(to, lanes...);
}

// step(d, Wide{}) for each 32 elements of [d, end) if kWide, each_vector() for the others.
template <bool kWide, class Step>
KP_INLINE void each_wide(int64_t d, int64_t end, const Step& step) {
  if constexpr (kWide)
    for (; d + kPair <= end; d += kPair) step(d, Wide{});
  each_vector(d, end, step);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
