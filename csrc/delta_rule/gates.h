// The gates of a gated delta rule, for sixteen heads at once.
#pragma once

#include "simd/vec_math.h"

namespace kernelpair::KP_TIER {
namespace {

struct Softplus {
  float beta, threshold;
};

// g = -exp(A_log) softplus(x), where softplus(x) = log(1 + exp(beta x)) / beta, or x past the threshold.
KP_INLINE F32x16 log_decay(F32x16 A_log, F32x16 x, Softplus s) {
  const F32x16 z = splat(s.beta) * x;
  return -(exp(A_log) * select(less(splat(s.threshold), z), x, softplus(z) / splat(s.beta)));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
