// gdn_gating: decay and write strength of a gated delta rule, elementwise. Tiny: what matters is that every element takes the
// same path. Sixteen heads at a time are gathered (any strides) into a whole vector, tails included, so that equal inputs
// give equal bits wherever they stand.
#include "common/delta_gates.h"
#include "common/parallel.h"
#include "common/vec_memory.h"

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
  switch (vector.dtype) {
    case Dtype::f32: return gather(at<float>(vector, first), stride, lanes);
    case Dtype::f16: return gather(at<F16>(vector, first), stride, lanes);
    default: return gather(at<Bf16>(vector, first), stride, lanes);
  }
}

template <class T>
void run(const View& A_log, const View& a, const View& b, const View& dt_bias, Softplus softplus, const View& g,
         const View& beta) {
  const int64_t rows = a.sizes[0], heads = a.sizes[1];
  parallel_for(rows, kGrain / (heads + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = 0; h < heads; h += kLanes) {
      const int lanes = lanes_left(heads - h);
      const F32x16 log_rate = gather_parameter(A_log, h, lanes), shift = gather_parameter(dt_bias, h, lanes);
      for (int64_t n = begin; n < end; ++n) {
        const F32x16 activation = gather(at<T>(a, n, h), a.strides[1], lanes);
        store(at<float>(g, n, h), log_decay(log_rate, activation + shift, softplus), lanes);
        store(at<T>(beta, n, h), sigmoid(gather(at<T>(b, n, h), b.strides[1], lanes)), lanes);
      }
    }
  });
}

}  // namespace

void gdn_gating(const View& A_log, const View& a, const View& b, const View& dt_bias, double softplus_beta,
                double softplus_threshold, const View& g, const View& beta) {
  const Softplus softplus{static_cast<float>(softplus_beta), static_cast<float>(softplus_threshold)};
  switch (a.dtype) {
    case Dtype::bf16: return run<Bf16>(A_log, a, b, dt_bias, softplus, g, beta);
    case Dtype::f16: return run<F16>(A_log, a, b, dt_bias, softplus, g, beta);
    default: return run<float>(A_log, a, b, dt_bias, softplus, g, beta);
  }
}

}  // namespace kernelpair::KP_TIER
