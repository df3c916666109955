// One row of x in int8, with its scale and zero point. Every step is one operation of IEEE float32 or of
// integers, in the order of the contract (docs/contracts/quantize_rows_int8.md): the bits are part of it.
#pragma once

#include "simd/bytes.h"
#include "simd/each_vector.h"

namespace kernelpair::KP_TIER {
namespace {

struct RowScale {
  float scale;
  int32_t azp;
};

constexpr float kLeastRange = 1e-7f;  // of rows of zeros

// What a row's values come to: the largest magnitude by its bits, so that NaN is the largest, and if they are asked
// for both ends.
template <bool kEnds>
struct RowRange {
  I32x16 magnitude = {};
  F32x16 low = zero(), high = zero();

  KP_INLINE void add(F32x16 values) {
    magnitude = max(magnitude, as_int(abs(values)));
    if constexpr (kEnds) {
      low = min(values, low);
      high = max(values, high);
    }
  }
  KP_INLINE bool finite() const { return !any(less(splat_int(0x7f7fffff), magnitude)); }
  KP_INLINE float largest() const { return reduce_max(as_float(magnitude)); }
  KP_INLINE float lowest() const { return -reduce_max(-low); }
  KP_INLINE float highest() const { return reduce_max(high); }
};

KP_INLINE float at_least_range(float range) { return range < kLeastRange ? kLeastRange : range; }

// q = clamp(rne(x inverse) + azp).
template <class T>
KP_INLINE void round_row(const T* x, int64_t K, float inverse, int32_t azp, int8_t* q) {
  each_vector(0, K, [&](int64_t k, auto... lanes) {
    const I32x16 steps = round_to_int(load(x + k, lanes...) * splat(inverse));
    store_bytes(q + k, clamp_to_bytes(steps + splat_int(azp)), lanes...);
  });
}

// The same with azp = 0, where |x| inverse <= 127 and the clamp would change nothing.
template <class T>
KP_INLINE void round_row(const T* x, int64_t K, float inverse, int8_t* q) {
  each_vector(0, K, [&](int64_t k, auto... lanes) {
    store_bytes(q + k, round_to_int(load(x + k, lanes...) * splat(inverse)), lanes...);
  });
}

template <bool kSymmetric, class T>
KP_NOINLINE RowScale quantize_row(const T* x, int64_t K, int8_t* q) {
  RowRange<!kSymmetric> range;
  each_vector(0, K, [&](int64_t k, auto... lanes) { range.add(load(x + k, lanes...)); });
  if (!range.finite()) {
    __builtin_memset(q, 0, K);
    return {__builtin_nanf(""), 0};
  }
  if constexpr (kSymmetric) {
    const float largest = at_least_range(range.largest());
    round_row(x, K, 127.0f / largest, q);
    return {largest / 127.0f, 0};
  } else {
    const float low = range.lowest(), width = at_least_range(range.highest() - low);
    const float inverse = 255.0f / width;
    const int32_t azp = round_to_int(splat(-128.0f - low * inverse)).p[0][0];
    round_row(x, K, inverse, azp, q);
    return {width / 255.0f, azp};
  }
}

// K elements side by side. A row that holds NaN or infinity becomes zeros with the scale NaN.
template <class T>
KP_INLINE RowScale quantize_row(const T* x, int64_t K, bool symmetric, int8_t* q) {
  return symmetric ? quantize_row<true>(x, K, q) : quantize_row<false>(x, K, q);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
