// Vector layer: sixteen 32-bit lanes in every tier, F32x16 and I32x16, made of as many native vectors as the
// tier needs (one of 64 bytes, two of 32, four of 16). Operators come from the compiler's vector extensions,
// the rest from intrinsics where a tier has a better instruction. Contraction is off in all tiers: a fused
// step is written fma().
//
//   F32x16 sum = zero();
//   for (int64_t i = 0; i < n; i += 16) {
//     const int live = lanes_left(n - i);               // 16, or fewer at the tail
//     sum = fma(load(x + i, live), load(y + i, live), sum);
//   }
//   float total = reduce_add(sum);
//
// Loads and stores are in vec_memory.h, elementary functions in vec_math.h.
#pragma once

#include <cstdint>

#include "core/view.h"

// The tiers of 16 bytes need SSE2 alone: the whole header takes longer than most of their kernels.
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_EMULATED_AVX512F) && !defined(__AVX512F__)
#error "simd/emulated_names.h has to be the first that is included"
#endif

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// For functions of more than a few instructions: where a vector takes four registers they are calls, for
// their code would fill minutes of compile time.
#if defined(__AVX2__)
#define KP_SHORT_INLINE KP_INLINE
#else
#define KP_SHORT_INLINE KP_NOINLINE
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

// A statement for each piece i, written out: a loop is memory to the optimizer until it is unrolled, and costs a tier of four
// pieces a third of its compile time.
#define KP_PIECE(n, ...) \
  {                      \
    constexpr int i = n; \
    __VA_ARGS__;         \
  }
#if defined(__AVX512F__)
#define KP_EACH_PIECE(...) KP_PIECE(0, __VA_ARGS__)
#elif defined(__AVX2__)
#define KP_EACH_PIECE(...) KP_PIECE(0, __VA_ARGS__) KP_PIECE(1, __VA_ARGS__)
#else
#define KP_EACH_PIECE(...) \
  KP_PIECE(0, __VA_ARGS__) KP_PIECE(1, __VA_ARGS__) KP_PIECE(2, __VA_ARGS__) KP_PIECE(3, __VA_ARGS__)
#endif

#define KP_BINARY(Vector, symbol)                        \
  KP_INLINE Vector operator symbol(Vector a, Vector b) { \
    Vector r;                                            \
    KP_EACH_PIECE(r.p[i] = a.p[i] symbol b.p[i]);        \
    return r;                                            \
  }
KP_BINARY(F32x16, +)
KP_BINARY(F32x16, -)
KP_BINARY(F32x16, *)
KP_BINARY(F32x16, /)
KP_BINARY(I32x16, &)
KP_BINARY(I32x16, |)
KP_BINARY(I32x16, ^)
#undef KP_BINARY

// Modulo 2^32: lanes that a mask drops later may hold anything.
KP_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)((UintPiece)a.p[i] + (UintPiece)b.p[i]));
  return r;
}
KP_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)((UintPiece)a.p[i] - (UintPiece)b.p[i]));
  return r;
}

KP_INLINE F32x16 splat(float x) {
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = x - FloatPiece{});
  return r;
}

KP_INLINE I32x16 splat_int(int32_t x) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = x - IntPiece{});
  return r;
}

KP_INLINE F32x16 zero() { return {}; }

KP_INLINE I32x16 as_int(F32x16 a) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)a.p[i]);
  return r;
}

KP_INLINE F32x16 as_float(I32x16 a) {
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = (FloatPiece)a.p[i]);
  return r;
}

KP_INLINE F32x16 operator-(F32x16 a) {
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = -a.p[i]);
  return r;
}
KP_INLINE F32x16 abs(F32x16 a) { return as_float(as_int(a) & splat_int(INT32_MAX)); }

template <int kBits>
KP_INLINE I32x16 shift_left(I32x16 a) {
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)((UintPiece)a.p[i] << kBits));
  return r;
}

template <int kBits>
KP_INLINE I32x16 shift_right(I32x16 a) {  // logical
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = (IntPiece)((UintPiece)a.p[i] >> kBits));
  return r;
}

KP_INLINE F32x16 to_float(I32x16 a) {
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = __builtin_convertvector(a.p[i], FloatPiece));
  return r;
}

KP_INLINE I32x16 truncate(F32x16 a) {  // towards zero; only for values that fit
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = __builtin_convertvector(a.p[i], IntPiece));
  return r;
}

// a * b + c with one rounding where the tier has the instruction, with two where it has not.
KP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_fmadd_ps(a.p[0], b.p[0], c.p[0])}};
#elif defined(__FMA__)
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]));
  return r;
#else
  return a * b + c;
#endif
}

// --- masks -------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)

#define KP_COMPARE(name, predicate) \
  KP_INLINE Mask16 name(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.p[0], b.p[0], predicate)}; }
KP_COMPARE(less, _CMP_LT_OQ)
KP_COMPARE(less_equal, _CMP_LE_OQ)
KP_COMPARE(equal, _CMP_EQ_OQ)
KP_COMPARE(unordered, _CMP_UNORD_Q)
#undef KP_COMPARE
KP_INLINE Mask16 less(I32x16 a, I32x16 b) {
  return {_mm512_cmplt_epi32_mask((__m512i)a.p[0], (__m512i)b.p[0])};
}
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
    KP_EACH_PIECE(r.p[i] = expression);       \
    return r;                                 \
  }
KP_COMPARE(less, a.p[i] < b.p[i])
KP_COMPARE(less_equal, a.p[i] <= b.p[i])
KP_COMPARE(equal, a.p[i] == b.p[i])
#if defined(__AVX2__)
KP_COMPARE(unordered, (IntPiece)_mm256_cmp_ps((__m256)a.p[i], (__m256)b.p[i], _CMP_UNORD_Q))
#else
KP_COMPARE(unordered, (a.p[i] != a.p[i]) | (b.p[i] != b.p[i]))
#endif
#undef KP_COMPARE
KP_INLINE Mask16 less(I32x16 a, I32x16 b) {
  Mask16 r;
  KP_EACH_PIECE(r.p[i] = a.p[i] < b.p[i]);
  return r;
}
KP_INLINE Mask16 operator&(Mask16 a, Mask16 b) {
  KP_EACH_PIECE(a.p[i] &= b.p[i]);
  return a;
}
KP_INLINE Mask16 operator|(Mask16 a, Mask16 b) {
  KP_EACH_PIECE(a.p[i] |= b.p[i]);
  return a;
}
KP_INLINE Mask16 operator~(Mask16 a) {
  KP_EACH_PIECE(a.p[i] = ~a.p[i]);
  return a;
}
KP_INLINE bool any(Mask16 a) {
#if defined(__AVX2__)
  return _mm256_movemask_ps((__m256)(a.p[0] | a.p[1])) != 0;
#else
  int32_t bits = 0;
  KP_EACH_PIECE(for (int lane = 0; lane < kPieceLanes; ++lane) bits |= a.p[i][lane]);
  return bits != 0;
#endif
}
KP_INLINE I32x16 select(Mask16 m, I32x16 yes, I32x16 no) {
  I32x16 r;
#if defined(__AVX2__)
  KP_EACH_PIECE(r.p[i] = (IntPiece)_mm256_blendv_epi8((__m256i)no.p[i], (__m256i)yes.p[i], (__m256i)m.p[i]));
#else
  KP_EACH_PIECE(r.p[i] = (yes.p[i] & m.p[i]) | (no.p[i] & ~m.p[i]));
#endif
  return r;
}
KP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
  return as_float(select(m, as_int(yes), as_int(no)));
}

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
#if defined(__AVX2__)
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_max_ps(a.p[i], b.p[i]));
#else
  KP_EACH_PIECE(r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i]);
#endif
  return r;
#endif
}
KP_INLINE I32x16 max(I32x16 a, I32x16 b) {
#if defined(__AVX512F__)
  return {{(IntPiece)_mm512_max_epi32((__m512i)a.p[0], (__m512i)b.p[0])}};
#else
  I32x16 r;
  KP_EACH_PIECE(r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i]);
  return r;
#endif
}

KP_INLINE F32x16 min(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_min_ps(a.p[0], b.p[0])}};
#else
  F32x16 r;
#if defined(__AVX2__)
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_min_ps(a.p[i], b.p[i]));
#else
  KP_EACH_PIECE(r.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i]);
#endif
  return r;
#endif
}

// --- across lanes ------------------------------------------------------------------------------------------

#if !defined(__AVX512F__) && defined(__AVX2__)

// One lane of all that `join` makes of eight.
template <class Join>
KP_INLINE float fold(__m256 a, const Join& join) {
  const __m128 four = join(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = join(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(join(two, _mm_movehdup_ps(two)));
}

#endif

KP_INLINE float reduce_add(F32x16 a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(a.p[0]);
#elif defined(__AVX2__)
  return fold((__m256)(a.p[0] + a.p[1]),
              [](__m128 x, __m128 y) KP_LAMBDA_INLINE { return _mm_add_ps(x, y); });
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
#elif defined(__AVX2__)
  return fold(_mm256_max_ps((__m256)a.p[0], (__m256)a.p[1]),
              [](__m128 x, __m128 y) KP_LAMBDA_INLINE { return _mm_max_ps(x, y); });
#else
  FloatPiece top = a.p[0];
  for (int i = 1; i < kPieces; ++i) top = top > a.p[i] ? top : a.p[i];
  float result = top[0];
  for (int lane = 1; lane < kPieceLanes; ++lane) result = result > top[lane] ? result : top[lane];
  return result;
#endif
}

}  // namespace
}  // namespace kernelpair::KP_TIER
