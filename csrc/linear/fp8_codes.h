// What codes of float8_e4m3fn mean, for the products of coded_weight.h.
#pragma once

#include "kernels/fp8_linear.h"
#include "linear/coded_weight.h"
#include "simd/float8_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(fp8_dots);
KP_PATH(fp8_tiles_few);
KP_PATH(fp8_tiles_whole);
KP_PATH(fp8_tiles_slices);
KP_PATH(fp8_vectors_straight);
KP_PATH(fp8_vectors_few);
KP_PATH(fp8_vectors_many);
KP_PATH(fp8_vectors_slices);

// The scales of the 32 outputs of a panel, in the column of blocks that holds some k.
class Fp8Codes {
  const View& scales;
  const int64_t block_k;
  const bool shared;  // all outputs have the scales of rows[0]
  const float* rows[kPanelColumns];
  alignas(64) float values[kPanelColumns];
  int64_t from = 0, until = 0;  // the k that they hold for
  ScaledCodes tables;

 public:
  using Arguments = Fp8LinearArguments;
  static constexpr int64_t kPairBytes = 32;
  using Crossed = CrossedCodes;

  template <Way way>
  static Path& path() {
    if constexpr (way == Way::dots) return paths::fp8_dots;
    if constexpr (way == Way::tiles_few) return paths::fp8_tiles_few;
    if constexpr (way == Way::tiles_whole) return paths::fp8_tiles_whole;
    if constexpr (way == Way::tiles_slices) return paths::fp8_tiles_slices;
    if constexpr (way == Way::vectors_straight) return paths::fp8_vectors_straight;
    if constexpr (way == Way::vectors_few) return paths::fp8_vectors_few;
    if constexpr (way == Way::vectors_many) return paths::fp8_vectors_many;
    if constexpr (way == Way::vectors_slices) return paths::fp8_vectors_slices;
  }

  static bool whole_steps(const Fp8LinearArguments& call) {
    return call.block_k % kBlockK == 0 || call.scales.sizes[1] == 1;
  }

  Fp8Codes(const Fp8LinearArguments& call, int64_t p)
      : scales(call.scales),
        block_k(call.block_k),
        shared(row_of(call, p, 0) == row_of(call, p, kPanelColumns - 1)) {
    rows[0] = row_of(call, p, 0);
    for (int64_t n = 1; n < kPanelColumns && !shared; ++n) rows[n] = row_of(call, p, n);
  }

  // Returns how many k the scales hold for; columns behind the last one take its.
  KP_INLINE int64_t move_to(int64_t k) {
    if (k < from || k >= until) {
      const int64_t offset = enter(k);
      if (shared)
        for (int half = 0; half < 2; ++half) store(values + half * kLanes, splat(scale(0, offset)));
      else
        fill(offset);
    }
    return until - k;
  }
  KP_INLINE F32x16 half(int half) const { return load(values + half * kLanes); }
  KP_INLINE static I32x16 numbers(const uint8_t* codes, int) {
    return load_numbers(reinterpret_cast<const F8e4m3*>(codes));
  }
  KP_INLINE static TwoPairs two_numbers(const uint8_t* codes, int) {
    return load_two_numbers(reinterpret_cast<const F8e4m3*>(codes));
  }
  // A table of what all codes are times the scale, or nullptr where outputs have several.
  template <class Tables = ScaledCodes>
    requires Tables::kHasTable
  KP_INLINE auto scaled() {
    Tables& own = tables;
    return shared ? own.of_scale(values[0], from) : nullptr;
  }
  KP_INLINE static void columns(const uint8_t* codes, int half, F32x16 (&of_k)[4]) {
    const auto [first, second] = two_numbers(codes, half);
    of_k[0] = low_half(first);
    of_k[1] = high_half(first);
    of_k[2] = low_half(second);
    of_k[3] = high_half(second);
  }

 private:
  // Outputs behind the last one, which nobody sees, take its scale.
  static const float* row_of(const Fp8LinearArguments& call, int64_t p, int64_t n) {
    const int64_t output = least(p * kPanelColumns + n, call.out.sizes[1] - 1);
    return at<float>(call.scales, output / call.block_n);
  }

  KP_INLINE float scale(int64_t n, int64_t offset) const { return rows[n][offset]; }

  // Moves to the column of blocks that holds k; returns where its scales stand in a row.
  KP_INLINE int64_t enter(int64_t k) {
    const int64_t column = least(k / block_k, scales.sizes[1] - 1);
    from = column * block_k;
    until = column == scales.sizes[1] - 1 ? INT64_MAX : from + block_k;
    return column * scales.strides[1];
  }

  KP_NOINLINE void fill(int64_t offset) {
    for (int64_t n = 0; n < kPanelColumns; ++n) values[n] = scale(n, offset);
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
