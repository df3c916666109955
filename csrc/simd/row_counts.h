// Numbers of rows that the compiler knows.
#pragma once

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

template <int N>
struct Count {
  static constexpr int value = N;
};

// Calls body(Count<R>) with the smallest number of rows, of at most kMost, that holds `rows`.
template <int kMost, class Body>
KP_INLINE void with_row_count(int64_t rows, const Body& body) {
  if (rows <= 1) return body(Count<1>{});
  if constexpr (kMost > 2)
    if (rows <= 2) return body(Count<2>{});
  if constexpr (kMost == 6)  // half of it
    if (rows <= 3) return body(Count<3>{});
  if constexpr (kMost > 4)
    if (rows <= 4) return body(Count<4>{});
  if constexpr (kMost > 8)
    if (rows <= 8) return body(Count<8>{});
  body(Count<kMost>{});
}

}  // namespace
}  // namespace kernelpair::KP_TIER
