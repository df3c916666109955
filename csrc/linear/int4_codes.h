// What codes of four bits mean, for the products of coded_weight.h: whole numbers, code minus zero point, under a
// scale for each group of columns.
#pragma once

#include "core/integers.h"
#include "kernels/int4_linear.h"
#include "linear/coded_weight.h"
#include "simd/nibbles.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(int4_dots);
KP_PATH(int4_tiles_few);
KP_PATH(int4_tiles_whole);
KP_PATH(int4_tiles_slices);
KP_PATH(int4_vectors_straight);
KP_PATH(int4_vectors_few);
KP_PATH(int4_vectors_many);
KP_PATH(int4_vectors_slices);

// The scales and zero points of the 32 outputs of a panel, in the group that holds some k.
class Int4Codes {
  const float* scales;
  const uint8_t* zeros;
  const int64_t groups, group_size;
  I32x16 points[2];
  const float* values = nullptr;
  int64_t from = 0, until = 0;  // the k that they hold for

 public:
  using Arguments = Int4LinearArguments;
  static constexpr int64_t kPairBytes = 16;

  template <Way way>
  static Path& path() {
    if constexpr (way == Way::dots) return paths::int4_dots;
    if constexpr (way == Way::tiles_few) return paths::int4_tiles_few;
    if constexpr (way == Way::tiles_whole) return paths::int4_tiles_whole;
    if constexpr (way == Way::tiles_slices) return paths::int4_tiles_slices;
    if constexpr (way == Way::vectors_straight) return paths::int4_vectors_straight;
    if constexpr (way == Way::vectors_few) return paths::int4_vectors_few;
    if constexpr (way == Way::vectors_many) return paths::int4_vectors_many;
    if constexpr (way == Way::vectors_slices) return paths::int4_vectors_slices;
  }

  static bool whole_steps(const Int4LinearArguments& call) {
    return call.group_size % kBlockK == 0 || call.scales.sizes[1] == 1;
  }

  Int4Codes(const Int4LinearArguments& call, int64_t p)
      : scales(at<float>(call.scales, p)),
        zeros(at<uint8_t>(call.zeros, p)),
        groups(call.scales.sizes[1]),
        group_size(call.group_size) {}

  // Columns behind the last one belong to its group. Returns how many k it holds from k on.
  KP_INLINE int64_t move_to(int64_t k) {
    if (k < from || k >= until) fill(least(k / group_size, groups - 1));
    return until - k;
  }
  KP_INLINE F32x16 half(int half) const { return load(values + half * kLanes); }
  KP_INLINE I32x16 numbers(const uint8_t* codes, int half) const {
    return load_differences(codes, points[half]);
  }
  KP_INLINE TwoPairs two_numbers(const uint8_t* codes, int half) const {
    return {numbers(codes, half), numbers(codes + kPairBytes, half)};
  }
  KP_INLINE void columns(const uint8_t* codes, int half, F32x16 (&of_k)[4]) const {
    load_differences(codes, points[half], of_k[0], of_k[1]);
    load_differences(codes + kPairBytes, points[half], of_k[2], of_k[3]);
  }
  KP_INLINE I32x16 zero_points(int half) const {
    return load_u8(zeros + from / group_size * kPanelColumns + half * kLanes);
  }

 private:
  KP_INLINE void fill(int64_t group) {
    from = group * group_size;
    until = group == groups - 1 ? INT64_MAX : from + group_size;
    values = scales + group * kPanelColumns;
    for (int half = 0; half < 2; ++half)
      points[half] = spread_points(zeros + group * kPanelColumns + half * kLanes);
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
