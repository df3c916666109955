// The score that a query head gives to no key at all.
#pragma once

#include "core/view.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

// sinks [H], or absent.
KP_NOINLINE float sink_of(const View& sinks, int64_t head) {
  return sinks.defined ? load_one(sinks.dtype, at(sinks, head)) : -__builtin_inff();
}

}  // namespace
}  // namespace kernelpair::KP_TIER
