// A row in whole vectors and a rest:
//
//   each_vector(0, n, [&](int64_t d, auto... lanes) {     // lanes: the number of the rest's elements, or nothing
//     store(to + d, load(from + d, lanes...) * factor, lanes...);
//   });
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// step(d) for each whole vector of [d, end), step(d, lanes) for what is left.
template <class Step>
KP_INLINE void each_vector(int64_t d, int64_t end, const Step& step) {
  for (; d + kLanes <= end; d += kLanes) step(d);
  if (d < end) step(d, static_cast<int>(end - d));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
