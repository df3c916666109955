// From a Dtype at run time to an element type at compile time:
//
//   with_float(q.dtype, [&](auto element) {
//     using T = decltype(element);           // float, Bf16 or F16
//     attend<T>(...);
//   });
#pragma once

#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

template <class Body>
KP_INLINE void with_float(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::bf16: return body(Bf16{});
    case Dtype::f16: return body(F16{});
    default: return body(float{});
  }
}

// One element of a float dtype.
KP_INLINE float load_one(Dtype dtype, const void* from) {
  float value;
  with_float(dtype, [&](auto element) { value = load_one(static_cast<const decltype(element)*>(from)); });
  return value;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
