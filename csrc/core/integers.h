// Arithmetic on sizes. Everything here is always inlined, so that ops and every tier can share it.
#pragma once

#include "core/view.h"

namespace kernelpair {

KP_INLINE constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
KP_INLINE constexpr int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
KP_INLINE constexpr int64_t clamp(int64_t n, int64_t low, int64_t high) {
  return n < low ? low : n > high ? high : n;
}

// n / step rounded up, for n >= 0; does not overflow.
KP_INLINE constexpr int64_t divide_up(int64_t n, int64_t step) { return n / step + (n % step != 0); }

// The smallest multiple of step that is not below n, for n >= 0.
KP_INLINE constexpr int64_t round_up(int64_t n, int64_t step) { return divide_up(n, step) * step; }

}  // namespace kernelpair
