// Which lanes a mask has.
#pragma once

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

// The lowest lane of a mask, 16 of an empty one.
KP_INLINE int first_lane(Mask16 m) {
#if defined(__AVX512F__)
  return __builtin_ctz(m.bits | 1u << kLanes);
#elif defined(__AVX2__)
  const int low = _mm256_movemask_ps((__m256)m.p[0]), high = _mm256_movemask_ps((__m256)m.p[1]);
  return __builtin_ctz(static_cast<unsigned>(low | high << 8) | 1u << kLanes);
#else
  for (int lane = 0; lane < kLanes; ++lane)
    if (m.p[lane / kPieceLanes][lane % kPieceLanes]) return lane;
  return kLanes;
#endif
}

KP_INLINE Mask16 one_lane(int lane) { return first_lanes(lane + 1) & ~first_lanes(lane); }

}  // namespace
}  // namespace kernelpair::KP_TIER
