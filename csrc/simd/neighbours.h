// Neighbouring lanes exchanged: a0 a1 a2 a3 .. become a1 a0 a3 a2 ..
#pragma once

#include <utility>

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

template <int... kLane>
KP_INLINE FloatPiece swap_in_piece(FloatPiece a, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, a, (kLane ^ 1)...);
}

KP_INLINE F32x16 swap_neighbours(F32x16 a) {
  KP_EACH_PIECE(a.p[i] = swap_in_piece(a.p[i], std::make_integer_sequence<int, kPieceLanes>{}));
  return a;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
