// gdn_gating: decay and write strength of a gated delta rule, elementwise. Tiny: what matters is that every
// element takes the same path. Sixteen heads at a time are gathered (any strides) into a whole vector, tails
// included, so that equal inputs give equal bits wherever they stand.
#include "kernels/gdn_gating.h"

#include "core/parallel.h"
#include "delta_rule/gates.h"
#include "simd/dtypes.h"
#include "simd/each_vector.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrain = 4096;  // elements, about 5 us

template <class T>
KP_INLINE F32x16 gather(const T* from, int64_t stride, int lanes) {
  if (stride == 1 && lanes == kLanes) return load(from);
  T buffer[kLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) buffer[lane] = from[lane * stride];
  return load(buffer);
}

KP_INLINE F32x16 gather_parameter(const View& vector, int64_t first, int lanes) {
  const int64_t stride = vector.strides[0];
  F32x16 values;
  with_float(vector.dtype,
             [&](auto element) { values = gather(at<decltype(element)>(vector, first), stride, lanes); });
  return values;
}

template <class T>
void run(const GdnGatingArguments& call) {
  const int64_t rows = call.a.sizes[0], heads = call.a.sizes[1];
  const Softplus softplus{.beta = call.softplus_beta, .threshold = call.softplus_threshold};
  parallel_for(rows, kGrain / (heads + 1) + 1, [&](int64_t begin, int64_t end) {
    each_vector(0, heads, [&](int64_t h, auto... rest) {
      const int lanes = lanes_left(heads - h);
      const F32x16 log_rate = gather_parameter(call.A_log, h, lanes),
                   shift = gather_parameter(call.dt_bias, h, lanes);
      for (int64_t n = begin; n < end; ++n) {
        const F32x16 activation = gather(at<T>(call.a, n, h), call.a.strides[1], lanes);
        store(at<float>(call.g, n, h), log_decay(log_rate, activation + shift, softplus), rest...);
        const F32x16 strength = sigmoid(gather(at<T>(call.b, n, h), call.b.strides[1], lanes));
        store(at<T>(call.beta, n, h), strength, rest...);
      }
    });
  });
}

}  // namespace

void gdn_gating(const GdnGatingArguments& call) {
  with_float(call.a.dtype, [&](auto element) { run<decltype(element)>(call); });
}

}  // namespace kernelpair::KP_TIER
