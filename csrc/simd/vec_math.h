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
// x / (1 + 2^n m), where a larger 2^n than 2^120 is divided by apart; past 80 nothing changes. The rounded
// 1 / ln 2 costs 2^-26 |x|, less than 2^-19 for every x whose result is not subnormal.
KP_INLINE F32x16 silu(F32x16 x) {
  const F32x16 bounded = min(splat(80), x), minus_log2e = splat(-1.44269504f);
  const F32x16 n = floor(bounded * minus_log2e);
  const F32x16 m = exp2_fraction(fma(bounded, minus_log2e, -n));
  const F32x16 near = min(splat(120), n);
  const F32x16 divisor = splat(1) + F32x16{{(FloatPiece)_mm512_scalef_ps(m.p[0], near.p[0])}};
  const F32x16 r = {{(FloatPiece)_mm512_rcp14_ps(divisor.p[0])}};
  return times_power(x * fma(r, fma(-divisor, r, splat(1)), r), near - n);
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
