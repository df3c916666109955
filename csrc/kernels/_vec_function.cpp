// The vector layer by itself, for its tests.
#include "common/dtypes.h"
#include "common/transpose.h"
#include "common/vec_math.h"

namespace kernelpair::KP_TIER {
namespace {

KP_INLINE F32x16 apply(int64_t function, F32x16 x) {
  switch (function) {
    case 1: return exp(x);
    case 2: return exp2(x);
    case 3: return tanh(x);
    case 4: return sigmoid(x);
    case 5: return silu(x);
    case 6: return softplus(x);
    default: return x;
  }
}

template <class From, class To>
void map(int64_t function, const From* x, To* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = lanes_left(n - i);
    store(out + i, apply(function, load(x + i, lanes)), lanes);
  }
}

void transpose_groups(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i + 256 <= n; i += 256) {
    F32x16 rows[16];
    for (int r = 0; r < 16; ++r) rows[r] = load(x + i + 16 * r);
    transpose(rows);
    for (int r = 0; r < 16; ++r) store(out + i + 16 * r, rows[r]);
  }
}

}  // namespace

void _vec_function(const View& x, const View& out, int64_t function) {
  if (function == 7) return transpose_groups(static_cast<float*>(x.data), static_cast<float*>(out.data), x.sizes[0]);
  with_float(x.dtype, [&](auto element) {
    using T = decltype(element);
    if (out.dtype == Dtype::f32)
      map(function, static_cast<const T*>(x.data), static_cast<float*>(out.data), x.sizes[0]);
    else
      map(function, static_cast<const T*>(x.data), static_cast<T*>(out.data), x.sizes[0]);
  });
}

}  // namespace kernelpair::KP_TIER
