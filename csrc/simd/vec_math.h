// Elementary functions on F32x16. Accuracy is part of the contracts and tested in tests/test_vec_math.py: exp
// and exp2 have a relative error below 2^-18, are exact at 0 and flush below 2^-126; tanh has an absolute
// error below 2^-18; sigmoid, silu and softplus a relative one below 2^-18. Infinities give the limit, NaN
// stays NaN.
#pragma once

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

// Largest integer not above a, for |a| < 2^31.
KP_INLINE F32x16 floor(F32x16 a) {
#if defined(__AVX512F__)
  return {{(FloatPiece)_mm512_roundscale_ps(a.p[0], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}};
#elif defined(__AVX2__)
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_floor_ps(a.p[i]));
  return r;
#else
  const F32x16 whole = to_float(truncate(a));
  return whole - select(less(a, whole), splat(1), zero());
#endif
}

// 2^f for f in [0, 1]: minimax of degree 5 with the constant term exactly 1, relative error 2^-23.5.
KP_INLINE F32x16 exp2_fraction(F32x16 f) {
  F32x16 y = splat(0.0018671300819070081f);
  y = fma(y, f, splat(0.009017030284436749f));
  y = fma(y, f, splat(0.055799913145968064f));
  y = fma(y, f, splat(0.24016445013606755f));
  y = fma(y, f, splat(0.693151311807523f));
  return fma(y, f, splat(1));
}

// a * 2^n for whole n <= 128 and a in [1, 2]; n below -126 gives 0.
KP_INLINE F32x16 times_power(F32x16 a, F32x16 n) {
#if defined(__AVX512F__)
  // Subnormal results would cost a hundred cycles; NaN stays NaN.
  const __mmask16 normal = _mm512_cmp_ps_mask(n.p[0], _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return {{(FloatPiece)_mm512_maskz_scalef_ps(normal, a.p[0], n.p[0])}};
#else
  const F32x16 biased = max(n + splat(127), zero());
  return a * as_float(shift_left<23>(truncate(biased)));
#endif
}

KP_SHORT_INLINE F32x16 exp2(F32x16 x) {
#if defined(__AVX512F__)
  // 0 for infinities.
  const FloatPiece f = _mm512_reduce_ps(x.p[0], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  // Scalef floors x itself.
  return {{(FloatPiece)_mm512_scalef_ps(exp2_fraction({{f}}).p[0], x.p[0])}};
#else
  const F32x16 bounded = min(splat(128), max(splat(-150), x));
  const F32x16 n = floor(bounded);
  return times_power(exp2_fraction(bounded - n), n);
#endif
}

// The fraction of x / ln 2 comes from x - n ln 2 with ln 2 in two parts: x times a rounded 1 / ln 2 would
// lose bits for large x.
KP_SHORT_INLINE F32x16 exp(F32x16 x) {
  const F32x16 bounded = min(splat(89), max(splat(-104), x));
  const F32x16 n = floor(bounded * splat(1.44269504f));
  const F32x16 rest = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), bounded));
  return times_power(exp2_fraction(rest * splat(1.44269504f)), n);
}

KP_SHORT_INLINE F32x16 tanh(F32x16 x) {
  const F32x16 e = exp(x + x);
  return splat(1) - splat(2) / (e + splat(1));
}

// 1 / a for a in [1, 2].
KP_INLINE F32x16 reciprocal_of_1_to_2(F32x16 a) {
#if defined(__AVX512F__)
  const F32x16 r = {{(FloatPiece)_mm512_rcp14_ps(a.p[0])}};
  return fma(r, fma(-a, r, splat(1)), r);
#else
  return splat(1) / a;
#endif
}

// exp(-|x|) = mantissa 2^power, and r = 1 / (1 + exp(-|x|)), which neither overflows nor cancels. A larger
// |x| changes nothing: it counts as 140. The fraction is exact but for one rounding, however large |x| is:
// fma keeps the product's low bits.
struct Logistic {
  F32x16 size, mantissa, power, r;
};
KP_SHORT_INLINE Logistic logistic(F32x16 x) {
  const F32x16 size = min(splat(140), abs(x)), power = floor(size * splat(-1.44269504f));
#if defined(__FMA__)
  const F32x16 fraction = fma(size, splat(-1.92596303e-8f), fma(size, splat(-1.44269504f), -power));
#else
  const F32x16 rest = (size * splat(-1.f) - power * splat(0.693359375f)) - power * splat(-2.12194440e-4f);
  const F32x16 fraction = rest * splat(1.44269504f);
#endif
  const F32x16 mantissa = exp2_fraction(fraction);
  return {size, mantissa, power, reciprocal_of_1_to_2(splat(1) + times_power(mantissa, power))};
}

KP_SHORT_INLINE F32x16 sigmoid(F32x16 x) {
  const Logistic l = logistic(x);
  return select(less(x, zero()), times_power(l.mantissa, l.power), splat(1)) * l.r;
}

// x sigmoid(x). For negative x the scale joins last, for exp(x) is subnormal before x exp(x) is.
#if defined(__AVX512F__)
// 2^(i / 16) for each lane i, less what i << 19 adds to its bits.
KP_INLINE __m512 sixteenth_powers() {
  return _mm512_castsi512_ps(_mm512_setr_epi32(
      0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
      0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d));
}

// x u / (1 + u) with u = exp(x), as x U / (2^8 + U) with U = 2^8 u, which is normal for every result that is. 1.5 * 2^19
// rounds a sum to sixteenths, which then are its low bits: four choose from a table, those above go to U's exponent. A
// polynomial of degree 2 does the rest, relative error 2^-21. The rounded 1 / ln 2 costs 2^-26 |x|, less than 2^-19 for
// every x whose result is not subnormal.
KP_INLINE F32x16 silu(F32x16 x) {
  const F32x16 log2e = splat(1.44269504f), sixteenths = splat(0x1.8p19f + 8);
  const F32x16 shifted = fma(x, log2e, sixteenths);
  const I32x16 power = as_int(shifted);
  const F32x16 rest = fma(x, log2e, sixteenths - shifted);
  const F32x16 entry = {{(FloatPiece)_mm512_permutexvar_ps((__m512i)power.p[0], sixteenth_powers())}};
  const F32x16 scale = as_float(as_int(entry) + shift_left<19>(power));
  const F32x16 u = fma(scale * rest, fma(splat(0.2402264299f), rest, splat(0.6931877208f)), scale);
  const F32x16 divisor = splat(256) + u, r = {{(FloatPiece)_mm512_rcp14_ps(divisor.p[0])}};
  const F32x16 product = x * u * fma(r, fma(-divisor, r, splat(1)), r);
  // Below is nothing that is normal; above exp(-x) is lost beside 1.
  const __mmask16 lives = _mm512_cmp_ps_mask(x.p[0], _mm512_set1_ps(-92), _CMP_NLT_UQ);
  const __mmask16 large = _mm512_cmp_ps_mask(x.p[0], _mm512_set1_ps(20), _CMP_GT_OQ);
  return {{(FloatPiece)_mm512_mask_mov_ps(_mm512_maskz_mov_ps(lives, product.p[0]), large, x.p[0])}};
}
#else
KP_SHORT_INLINE F32x16 silu(F32x16 x) {
  const Logistic l = logistic(x);
  const F32x16 negative = times_power(-l.size * l.mantissa * l.r, l.power + splat(64)) * splat(0x1p-64f);
  return select(less(x, zero()), negative, x * l.r);
}
#endif

// log(1 + u) for u in [0, 1], as 2 atanh(s) with s = u / (2 + u): s times a polynomial in s^2, relative error
// below 2^-22.
KP_INLINE F32x16 log1p_unit(F32x16 u) {
  const F32x16 s = u / (splat(2) + u), z = s * s;
  F32x16 y = splat(0.33983609373510804f);
  y = fma(y, z, splat(0.3963596337244995f));
  y = fma(y, z, splat(0.6667348351475513f));
  return s * fma(y, z, splat(2));
}

// log(1 + exp(x)).
KP_SHORT_INLINE F32x16 softplus(F32x16 x) { return max(zero(), x) + log1p_unit(exp(-abs(x))); }

}  // namespace
}  // namespace kernelpair::KP_TIER
