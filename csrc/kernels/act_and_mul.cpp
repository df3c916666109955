// act_and_mul: one pass over both halves of a row. Tails take the same functions as whole vectors, so that
// equal elements give equal bits wherever they stand.
#include "kernels/act_and_mul.h"

#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/vec_math.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrain = 16 << 10;  // elements of the result, about 5 us

KP_PATH(act_silu);
KP_PATH(act_gelu);
KP_PATH(act_gelu_tanh);

// 1 + erf(x / sqrt 2), without cancellation for negative x: erfc(a) = t P(t) exp(-a^2) for a >= 0, with t =
// 1 / (1 + 0.3275911 a) and P of degree 4 (Abramowitz and Stegun, 7.1.26), is off by 2^-22.6.
KP_SHORT_INLINE F32x16 one_plus_erf(F32x16 x) {
  const F32x16 a = abs(x) * splat(0.70710678f);
  const F32x16 t = splat(1) / fma(a, splat(0.3275911f), splat(1));
  F32x16 p = fma(t, splat(1.061405429f), splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const F32x16 complement = p * t * exp(-(a * a));
  return select(less(x, zero()), complement, splat(2) - complement);
}

struct Silu {
  static KP_INLINE F32x16 of(F32x16 x) { return silu(x); }
};
struct Gelu {
  static KP_INLINE F32x16 of(F32x16 x) { return x * splat(0.5f) * one_plus_erf(x); }
};
// The cube may overflow: tanh is 1 there.
struct GeluTanh {
  static KP_INLINE F32x16 of(F32x16 x) {
    const F32x16 inner = x * fma(x * x, splat(0.044715f * 0.79788456f), splat(0.79788456f));
    return x * splat(0.5f) * (splat(1) + tanh(inner));
  }
};

template <class F, class T>
void activate_row(const T* x, int64_t d, T* to) {
  const auto activated = [](F32x16 gate) KP_LAMBDA_INLINE { return F::of(gate); };
  each_wide<true>(0, d, [&](int64_t j, auto... lanes) {
    store(to + j, each_half(load(x + j, lanes...), activated) * load(x + d + j, lanes...), lanes...);
  });
}

template <class F>
void run(const ActAndMulArguments& call) {
  const int64_t d = call.out.sizes[3];
  with_float(call.x.dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(row_count(call.x), kGrain / (d + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) activate_row<F>(row_at<T>(call.x, i), d, row_at<T>(call.out, i));
    });
  });
}

}  // namespace

void act_and_mul(const ActAndMulArguments& call) {
  switch (call.activation) {
    case Activation::silu: mark(paths::act_silu); return run<Silu>(call);
    case Activation::gelu: mark(paths::act_gelu); return run<Gelu>(call);
    case Activation::gelu_tanh: mark(paths::act_gelu_tanh); return run<GeluTanh>(call);
  }
}

}  // namespace kernelpair::KP_TIER
