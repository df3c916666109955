// Vector layer: sixteen 32-bit lanes in every tier, F32x16 and I32x16, made of as many native vectors as the tier needs
// (one of 64 bytes, two of 32, four of 16). Operators come from the compiler's vector extensions, the rest from
// intrinsics where a tier has a better instruction. Contraction is off in all tiers: a fused step is written fma().
//
//   F32x16 sum = zero();
//   for (int64_t i = 0; i < n; i += 16) {
//     const int live = lanes_left(n - i);               // 16, or fewer at the tail
//     sum = fma(load(x + i, live), load(y + i, live), sum);
//   }
//   float total = reduce_add(sum);
//
// Elements in memory are float, Bf16 or F16; load and store convert (round to nearest even, NaN stays NaN).
#pragma once

#include <cstdint>

#include "common/view.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kernelpair {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

}  // namespace kernelpair

namespace kernelpair::KP_TIER {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

constexpr int kLanes = 16;
constexpr int kPieces = 64 / kVectorBytes;
constexpr int kPieceLanes = kLanes / kPieces;

using FloatPiece = float __attribute__((vector_size(kVectorBytes)));
using IntPiece = int32_t __attribute__((vector_size(kVectorBytes)));
using UintPiece = uint32_t __attribute__((vector_size(kVectorBytes)));
using ShortPiece = uint16_t __attribute__((vector_size(kVectorBytes / 2)));

struct F32x16 {
  FloatPiece p[kPieces];
};
struct I32x16 {
  IntPiece p[kPieces];
};
#if defined(__AVX512F__)
struct Mask16 {
  __mmask16 bits;
};
#else
struct Mask16 {
  IntPiece p[kPieces];  // all ones or all zeros in each lane
};
#endif

#define KP_EACH_PIECE _Pragma("GCC unroll 4") for (int i = 0; i < kPieces; ++i)

#define KP_BINARY(Vector, symbol)                       \
  KP_INLINE Vector operator symbol(Vector a, Vector b) { \
    Vector r;                                           \
    KP_EACH_PIECE r.p[i] = a.p[i] symbol b.p[i];        \
    return r;                                           \
  }
KP_BINARY(F32x16, +)
KP_BINARY(F32x16, -)
KP_BINARY(F32x16, *)
KP_BINARY(F32x16, /)
KP_BINARY(I32x16, +)
KP_BINARY(I32x16, -)
KP_BINARY(I32x16, &)
KP_BINARY(I32x16, |)
KP_BINARY(I32x16, ^)
#undef KP_BINARY

KP_INLINE F32x16 splat(float x) {
  F32x16 r;
  KP_EACH_PIECE r.p[i] = x - FloatPiece{};
  return r;
}

KP_INLINE I32x16 splat_int(int32_t x) {
  I32x16 r;
  KP_EACH_PIECE r.p[i] = x - IntPiece{};
  return r;
}

KP_INLINE F32x16 zero() { return {}; }

KP_INLINE I32x16 as_int(F32x16 a) {
  I32x16 r;
  KP_EACH_PIECE r.p[i] = (IntPiece)a.p[i];
  return r;
}

KP_INLINE F32x16 as_float(I32x16 a) {
  F32x16 r;
  KP_EACH_PIECE r.p[i] = (FloatPiece)a.p[i];
  return r;
}

KP_INLINE F32x16 operator-(F32x16 a) { return as_float(as_int(a) ^ splat_int(INT32_MIN)); }
KP_INLINE F32x16 abs(F32x16 a) { return as_float(as_int(a) & splat_int(INT32_MAX)); }

template <int kBits>
KP_INLINE I32x16 shift_left(I32x16 a) {
  I32x16 r;
  KP_EACH_PIECE r.p[i] = (IntPiece)((UintPiece)a.p[i] << kBits);
  return r;
}

template <int kBits>
KP_INLINE I32x16 shift_right(I32x16 a) {  // logical
  I32x16 r;
  KP_EACH_PIECE r.p[i] = (IntPiece)((UintPiece)a.p[i] >> kBits);
  return r;
}

KP_INLINE F32x16 to_float(I32x16 a) {
  F32x16 r;
  KP_EACH_PIECE r.p[i] = __builtin_convertvector(a.p[i], FloatPiece);
  return r;
}

KP_INLINE I32x16 truncate(F32x16 a) {  // towards zero; only for values that fit
  I32x16 r;
  KP_EACH_PIECE r.p[i] = __builtin_convertvector(a.p[i], IntPiece);
  return r;
}

// a * b + c with one rounding where the tier has the instruction, with two where it has not.
KP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_fmadd_ps(a.p[0], b.p[0], c.p[0])}};
#elif defined(__FMA__)
  F32x16 r;
  KP_EACH_PIECE r.p[i] = (FloatPiece)_mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
  return r;
#else
  return a * b + c;
#endif
}

// --- masks ---------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)

#define KP_COMPARE(name, predicate) \
  KP_INLINE Mask16 name(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.p[0], b.p[0], predicate)}; }
KP_COMPARE(less, _CMP_LT_OQ)
KP_COMPARE(less_equal, _CMP_LE_OQ)
KP_COMPARE(equal, _CMP_EQ_OQ)
KP_COMPARE(unordered, _CMP_UNORD_Q)
#undef KP_COMPARE
KP_INLINE Mask16 less(I32x16 a, I32x16 b) { return {_mm512_cmplt_epi32_mask((__m512i)a.p[0], (__m512i)b.p[0])}; }
KP_INLINE Mask16 operator&(Mask16 a, Mask16 b) { return {static_cast<__mmask16>(a.bits & b.bits)}; }
KP_INLINE Mask16 operator|(Mask16 a, Mask16 b) { return {static_cast<__mmask16>(a.bits | b.bits)}; }
KP_INLINE Mask16 operator~(Mask16 a) { return {static_cast<__mmask16>(~a.bits)}; }
KP_INLINE bool any(Mask16 a) { return a.bits != 0; }
KP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return {{(FloatPiece)_mm512_mask_blend_ps(m.bits, no.p[0], yes.p[0])}};
}
KP_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  return {{(IntPiece)_mm512_mask_blend_epi32(m.bits, (__m512i)no.p[0], (__m512i)yes.p[0])}};
}

#else

#define KP_COMPARE(name, expression)          \
  KP_INLINE Mask16 name(F32x16 a, F32x16 b) { \
    Mask16 r;                                 \
    KP_EACH_PIECE r.p[i] = expression;        \
    return r;                                 \
  }
KP_COMPARE(less, a.p[i] < b.p[i])
KP_COMPARE(less_equal, a.p[i] <= b.p[i])
KP_COMPARE(equal, a.p[i] == b.p[i])
KP_COMPARE(unordered, (a.p[i] != a.p[i]) | (b.p[i] != b.p[i]))
#undef KP_COMPARE
KP_INLINE Mask16 less(I32x16 a, I32x16 b) {
  Mask16 r;
  KP_EACH_PIECE r.p[i] = a.p[i] < b.p[i];
  return r;
}
KP_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  KP_EACH_PIECE a.p[i] &= b.p[i];
  return a;
}
KP_INLINE Mask16 operator|(Mask16 a, Mask16 b) {
  KP_EACH_PIECE a.p[i] |= b.p[i];
  return a;
}
KP_INLINE Mask16 operator~(Mask16 a) {
  KP_EACH_PIECE a.p[i] = ~a.p[i];
  return a;
}
KP_INLINE bool any(Mask16 a) {
  int32_t bits = 0;
  KP_EACH_PIECE for (int lane = 0; lane < kPieceLanes; ++lane) bits |= a.p[i][lane];
  return bits != 0;
}
KP_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  I32x16 r;
  KP_EACH_PIECE r.p[i] = (yes.p[i] & m.p[i]) | (no.p[i] & ~m.p[i]);
  return r;
}
KP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) { return as_float(select(m, as_int(yes), as_int(no))); }

#endif

KP_INLINE I32x16 lane_numbers() {
  constexpr int32_t numbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  I32x16 r;
  __builtin_memcpy(&r, numbers, sizeof r);
  return r;
}

KP_INLINE int lanes_left(int64_t n) { return n < kLanes ? static_cast<int>(n) : kLanes; }

// The first n lanes, 0 <= n <= 16.
KP_INLINE Mask16 first_lanes(int n) {
#if defined(__AVX512F__)
  return {static_cast<__mmask16>((1u << n) - 1)};
#else
  return less(lane_numbers(), splat_int(n));
#endif
}

// As MAXPS and MINPS: the second operand if either is NaN.
KP_INLINE F32x16 max(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_max_ps(a.p[0], b.p[0])}};
#else
  F32x16 r;
  KP_EACH_PIECE r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i];
  return r;
#endif
}

KP_INLINE F32x16 min(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_min_ps(a.p[0], b.p[0])}};
#else
  F32x16 r;
  KP_EACH_PIECE r.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i];
  return r;
#endif
}

// --- across lanes --------------------------------------------------------------------------------------------------

KP_INLINE float reduce_add(F32x16 a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(a.p[0]);
#else
  FloatPiece sum = a.p[0];
  for (int i = 1; i < kPieces; ++i) sum += a.p[i];
  float total = 0;
  for (int lane = 0; lane < kPieceLanes; ++lane) total += sum[lane];
  return total;
#endif
}

KP_INLINE float reduce_max(F32x16 a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a.p[0]);
#else
  FloatPiece top = a.p[0];
  for (int i = 1; i < kPieces; ++i) top = top > a.p[i] ? top : a.p[i];
  float result = top[0];
  for (int lane = 1; lane < kPieceLanes; ++lane) result = result > top[lane] ? result : top[lane];
  return result;
#endif
}

// --- memory --------------------------------------------------------------------------------------------------------

// Piece by piece: copied as a whole, more than one piece would go through the stack.
KP_INLINE F32x16 load(const float* from) {
  F32x16 r;
  KP_EACH_PIECE __builtin_memcpy(&r.p[i], from + i * kPieceLanes, kVectorBytes);
  return r;
}

KP_INLINE void store(float* to, F32x16 a) {
  KP_EACH_PIECE __builtin_memcpy(to + i * kPieceLanes, &a.p[i], kVectorBytes);
}

// Sixteen 16-bit elements widened to 32 bits, and back by dropping the upper halves.
KP_INLINE I32x16 load_u16(const void* from) {
  I32x16 r;
  KP_EACH_PIECE {
    ShortPiece narrow;
    __builtin_memcpy(&narrow, static_cast<const char*>(from) + i * sizeof narrow, sizeof narrow);
    r.p[i] = __builtin_convertvector(narrow, IntPiece);
  }
  return r;
}

KP_INLINE void store_u16(void* to, I32x16 a) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16((__m512i)a.p[0]));
#else
  KP_EACH_PIECE {
    const ShortPiece narrow = __builtin_convertvector((UintPiece)a.p[i], ShortPiece);
    __builtin_memcpy(static_cast<char*>(to) + i * sizeof narrow, &narrow, sizeof narrow);
  }
#endif
}

KP_INLINE F32x16 load(const Bf16* from) { return as_float(shift_left<16>(load_u16(from))); }

KP_INLINE I32x16 bf16_bits(F32x16 a) {  // round to nearest even; the upper half of each lane is 0
  const I32x16 bits = as_int(a), upper = shift_right<16>(bits);
  const I32x16 rounded = shift_right<16>(bits + splat_int(0x7fff) + (upper & splat_int(1)));
  return select(unordered(a, a), upper | splat_int(0x40), rounded);
}

KP_INLINE void store(Bf16* to, F32x16 a) {
#if defined(__AVX512BF16__)
  const __m256bh bits = _mm512_cvtneps_pbh(a.p[0]);
  __builtin_memcpy(to, &bits, sizeof bits);
#else
  store_u16(to, bf16_bits(a));
#endif
}

#if defined(__AVX512F__)

KP_INLINE F32x16 load(const F16* from) {
  return {{(FloatPiece)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}};
}
KP_INLINE void store(F16* to, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a.p[0], _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__F16C__)

KP_INLINE F32x16 load(const F16* from) {
  F32x16 r;
  KP_EACH_PIECE r.p[i] =
      (FloatPiece)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kPieceLanes)));
  return r;
}
KP_INLINE void store(F16* to, F32x16 a) {
  KP_EACH_PIECE _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * kPieceLanes),
                                 _mm256_cvtps_ph(a.p[i], _MM_FROUND_TO_NEAREST_INT));
}

#else

// Shifted into a float's place a half is too small by 2^112, subnormals included; infinity and NaN need their exponent back.
KP_INLINE F32x16 load(const F16* from) {
  const I32x16 half = load_u16(from), magnitude = shift_left<13>(half & splat_int(0x7fff));
  const F32x16 scaled = as_float(magnitude) * as_float(splat_int((127 + 112) << 23));
  const Mask16 finite = less(magnitude, splat_int(0x7c00 << 13));
  const I32x16 bits = select(finite, as_int(scaled), magnitude | splat_int(0x7f800000));
  return as_float(bits | shift_left<16>(half & splat_int(0x8000)));
}

KP_INLINE I32x16 f16_bits(F32x16 a) {
  const I32x16 bits = as_int(a), sign = shift_right<16>(bits) & splat_int(0x8000);
  const I32x16 magnitude = bits & splat_int(INT32_MAX);
  const I32x16 odd = shift_right<13>(magnitude) & splat_int(1);
  const I32x16 normal = shift_right<13>(magnitude + splat_int(0xfff) + odd - splat_int(112 << 23));
  // Below 2^-14: adding 1/2 makes the unit of a float's last place that of a subnormal half, and rounds to it.
  const I32x16 half_one = splat_int(126 << 23);
  const I32x16 subnormal = as_int(as_float(magnitude) + as_float(half_one)) - half_one;
  const I32x16 finite = select(less(magnitude, splat_int(113 << 23)), subnormal, normal);
  const I32x16 overflow = select(less(splat_int(0x7f800000), magnitude),
                                 splat_int(0x7e00) | (shift_right<13>(magnitude) & splat_int(0x1ff)), splat_int(0x7c00));
  return sign | select(less(magnitude, splat_int(0x477ff000)), finite, overflow);  // 65520 rounds to infinity
}
KP_INLINE void store(F16* to, F32x16 a) { store_u16(to, f16_bits(a)); }

#endif

// The first `lanes` elements; the other lanes load as 0, and nothing past them is touched.
#if defined(__AVX512F__)

KP_INLINE F32x16 load(const float* from, int lanes) {
  return {{(FloatPiece)_mm512_maskz_loadu_ps(first_lanes(lanes).bits, from)}};
}
KP_INLINE F32x16 load(const Bf16* from, int lanes) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(lanes).bits, from);
  return {{(FloatPiece)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))}};
}
KP_INLINE F32x16 load(const F16* from, int lanes) {
  return {{(FloatPiece)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(lanes).bits, from))}};
}
KP_INLINE void store(float* to, F32x16 a, int lanes) { _mm512_mask_storeu_ps(to, first_lanes(lanes).bits, a.p[0]); }
KP_INLINE void store(Bf16* to, F32x16 a, int lanes) {
  __m256i bits;
  store(reinterpret_cast<Bf16*>(&bits), a);
  _mm256_mask_storeu_epi16(to, first_lanes(lanes).bits, bits);
}
KP_INLINE void store(F16* to, F32x16 a, int lanes) {
  _mm256_mask_storeu_epi16(to, first_lanes(lanes).bits, _mm512_cvtps_ph(a.p[0], _MM_FROUND_TO_NEAREST_INT));
}

#else

template <class T>
KP_INLINE F32x16 load(const T* from, int lanes) {
  T buffer[kLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) buffer[lane] = from[lane];
  return load(buffer);
}
template <class T>
KP_INLINE void store(T* to, F32x16 a, int lanes) {
  T buffer[kLanes];
  store(buffer, a);
  for (int lane = 0; lane < lanes; ++lane) to[lane] = buffer[lane];
}

#endif

// One element, converted.
KP_INLINE float load_one(const float* from) { return *from; }
template <class T>
KP_INLINE float load_one(const T* from) {
  T lanes[kLanes] = {*from};
  return load(lanes).p[0][0];
}
template <class T>
KP_INLINE void store_one(T* to, float a) {
  T lanes[kLanes];
  store(lanes, splat(a));
  *to = lanes[0];
}

// --- streaming: past the caches, for output too large to be read back from them ---------------------------------------

KP_INLINE void stream_line(void* to, const void* from) {  // 64 bytes, `to` aligned to 64
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  for (int i = 0; i < 2; ++i)
    _mm256_stream_si256(static_cast<__m256i*>(to) + i, _mm256_loadu_si256(static_cast<const __m256i*>(from) + i));
#elif defined(__SSE2__)
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
#else
  __builtin_memcpy(to, from, 64);
#endif
}

KP_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// A copy whose whole cache lines stream; the caller ends with stream_fence().
KP_INLINE void stream_bytes(char* to, const char* from, int64_t bytes) {
  int64_t head = -reinterpret_cast<intptr_t>(to) & 63;
  if (head > bytes) head = bytes;
  __builtin_memcpy(to, from, head);
  int64_t i = head;
  for (; i + 64 <= bytes; i += 64) stream_line(to + i, from + i);
  __builtin_memcpy(to + i, from + i, bytes - i);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
