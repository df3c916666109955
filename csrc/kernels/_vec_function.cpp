// The vector layer by itself, for its tests.
#include "kernels/_vec_function.h"

#include "simd/dtypes.h"
#include "simd/transpose.h"
#include "simd/vec_math.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

KP_INLINE F32x16 apply(VecFunction function, F32x16 x) {
  switch (function) {
    case VecFunction::exp: return exp(x);
    case VecFunction::exp2: return exp2(x);
    case VecFunction::tanh: return tanh(x);
    case VecFunction::sigmoid: return sigmoid(x);
    case VecFunction::silu: return silu(x);
    case VecFunction::softplus: return softplus(x);
    default: return x;
  }
}

template <class From, class To>
void map(VecFunction function, const From* x, To* out, int64_t n) {
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

// Rounded to bf16 thirty-two at a time, as simd/wide.h stores them.
void round_wide(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i + kPair <= n; i += kPair) {
    F32x32 both = load(x + i, Wide{});
    if constexpr (!kWideInOrder<Bf16>) load_split(x + i, both.first, both.second);
    Bf16 rounded[kPair];
    store(rounded, both, Wide{});
    store(out + i, F32x32{load(rounded), load(rounded + kLanes)}, Wide{});
  }
}

}  // namespace

void _vec_function(const VecFunctionArguments& call) {
  const View &x = call.x, &out = call.out;
  if (call.function == VecFunction::transpose)
    return transpose_groups(static_cast<float*>(x.data), static_cast<float*>(out.data), x.sizes[0]);
  if (call.function == VecFunction::round_wide)
    return round_wide(static_cast<float*>(x.data), static_cast<float*>(out.data), x.sizes[0]);
  with_float(x.dtype, [&](auto element) {
    using T = decltype(element);
    if (out.dtype == Dtype::f32)
      map(call.function, static_cast<const T*>(x.data), static_cast<float*>(out.data), x.sizes[0]);
    else
      map(call.function, static_cast<const T*>(x.data), static_cast<T*>(out.data), x.sizes[0]);
  });
}

}  // namespace kernelpair::KP_TIER
