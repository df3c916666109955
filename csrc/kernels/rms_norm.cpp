// rms_norm: two passes over a group of columns, which stays in L1. The first squares and adds up; with a
// residual it adds that before, and squares what it stored, so that the result is that of the stored sum. The
// second multiplies: all factors in float32, one rounding.
#include "kernels/rms_norm.h"

#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/vec_math.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrain = 32 << 10;  // elements, about 5 us
// Apart, so that the additions of a row do not wait for each other; more than two take registers from the rounding.
constexpr int kSums = kPieces == 1 ? 4 : 2;

KP_PATH(norm_plain);
KP_PATH(norm_residual);
KP_PATH(norm_gated);

template <class Load>
KP_INLINE float sum_of_squares(int64_t n, const Load& load_at) {
  F32x16 sums[kSums] = {};
  int64_t d = 0;
  for (; d + kSums * kLanes <= n; d += kSums * kLanes)
    for (int k = 0; k < kSums; k += 2) {
      const F32x32 s = load_at(d + k * kLanes, Wide{});
      sums[k] = fma(s.first, s.first, sums[k]);
      sums[k + 1] = fma(s.second, s.second, sums[k + 1]);
    }
  each_vector(d, n, [&](int64_t at, auto... lanes) {
    const F32x16 s = load_at(at, lanes...);
    sums[0] = fma(s, s, sums[0]);
  });
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) sums[k] = sums[k] + sums[k + half];
  return reduce_add(sums[0]);
}

// What normalised values are multiplied by, at column d of their row: of dtype Element, if any.
template <class T>
struct NoFactor {
  using Element = T;
  template <class Vector, class... Lanes>
  KP_INLINE Vector times(Vector s, int64_t, Lanes...) const {
    return s;
  }
};
template <class W>
struct Weight {
  using Element = W;
  const W* from;
  F32x16 added;  // 1 with gemma, else 0
  template <class Vector, class... Lanes>
  KP_INLINE Vector times(Vector s, int64_t d, Lanes... lanes) const {
    return s * (load(from + d, lanes...) + added);
  }
};
template <class T>
struct Gate {
  const T* from;
  template <class Vector, class... Lanes>
  KP_INLINE Vector times(Vector s, int64_t d, Lanes... lanes) const {
    return s * each_half(load(from + d, lanes...), [](F32x16 gate) KP_LAMBDA_INLINE { return silu(gate); });
  }
};

template <class T, class Body>
KP_INLINE void with_weight(const View& weight, bool gemma, const Body& body) {
  const F32x16 added = splat(gemma ? 1.0f : 0.0f);
  if (!weight.defined)
    body(NoFactor<T>{});
  else if (weight.dtype == Dtype::f32)
    body(Weight<float>{static_cast<const float*>(weight.data), added});
  else
    body(Weight<T>{static_cast<const T*>(weight.data), added});
}

// One group: columns [first, first + call.group) of a row that begins at `s`.
template <class T, class W, class G>
KP_INLINE void scale_group(const RmsNormArguments& call, const T* s, float sum, int64_t first,
                           const W& weight, const G& gate, T* to) {
  const float mean = sum / static_cast<float>(call.group) + call.eps;
  // Beside a row of zeros eps may have been flushed.
  const F32x16 r = splat(mean == 0 ? 0.0f : 1.0f / __builtin_sqrtf(mean));
  constexpr bool kOneOrder = std::is_same_v<typename W::Element, T>;
  each_wide<kOneOrder>(first, first + call.group, [&](int64_t d, auto... lanes) {
    const auto normal = load(s + d, lanes...) * r;
    store(to + d, gate.times(weight.times(normal, d, lanes...), d, lanes...), lanes...);
  });
}

template <class T, class W>
void normalise_row(const RmsNormArguments& call, int64_t i, const W& weight) {
  const T* x = row_at<T>(call.x, i);
  T* to = row_at<T>(call.out, i);
  const int64_t D = call.x.sizes[3];
  for (int64_t first = 0; first < D; first += call.group) {
    const T* from = x + first;
    if (call.residual.defined) {
      T* stored = row_at<T>(call.residual, i);
      T* into = stored + first;
      const float sum = sum_of_squares(call.group, [&](int64_t d, auto... lanes) {
        return store_and_load(into + d, load(from + d, lanes...) + load(into + d, lanes...), lanes...);
      });
      scale_group(call, stored, sum, first, weight, NoFactor<T>{}, to);
      continue;
    }
    const float sum =
        sum_of_squares(call.group, [&](int64_t d, auto... lanes) { return load(from + d, lanes...); });
    if (call.gate.defined)
      scale_group(call, x, sum, first, weight, Gate<T>{row_at<T>(call.gate, i)}, to);
    else
      scale_group(call, x, sum, first, weight, NoFactor<T>{}, to);
  }
}

}  // namespace

void rms_norm(const RmsNormArguments& call) {
  mark(call.residual.defined ? paths::norm_residual
       : call.gate.defined   ? paths::norm_gated
                             : paths::norm_plain);
  with_float(call.x.dtype, [&](auto element) {
    using T = decltype(element);
    with_weight<T>(call.weight, call.gemma, [&](const auto& weight) {
      parallel_for(row_count(call.x), kGrain / (call.x.sizes[3] + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) normalise_row<T>(call, i, weight);
      });
    });
  });
}

}  // namespace kernelpair::KP_TIER
