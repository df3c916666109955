// How a kernel tells the engine of prefill (kernels/_prefill.h) where its keys lie.
#pragma once

#include "kernels/_prefill.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kUnbounded = int64_t{1} << 60;

// Keys has the functions of a KeySource.
template <class Keys>
KP_INLINE KeySource key_source(const Keys& keys, Dtype dtype) {
  return {.self = &keys,
          .dtype = dtype,
          .sequence = [](const void* self, int64_t b) { return static_cast<const Keys*>(self)->sequence(b); },
          .locate = [](const void* self, int64_t b, int64_t head, int64_t first, int64_t count,
                       const char** keys, const char** values) {
    static_cast<const Keys*>(self)->locate(b, head, first, count, keys, values);
  }};
}

}  // namespace
}  // namespace kernelpair::KP_TIER
