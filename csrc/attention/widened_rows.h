// Rows of a float8 cache as numbers of the queries' dtype, which holds each of them exactly: a block of keys at a time, so
// that memory is read for half as many bytes as of bfloat16, and the engine of decode finds its rows in a cache of the CPU.
#pragma once

#include "attention/decode_block.h"
#include "simd/float8_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

// The rows of `keys` keys of a [pages, slots, heads, width] cache, each with `heads` heads: rows[j] becomes the address of
// dense ones at `to`.
template <class T>
void widen_rows(const View& cache, int64_t heads, int64_t keys, const char** rows, T* to) {
  const int64_t width = cache.sizes[3], stride = cache.strides[2];
  const int64_t run = stride == width ? heads * width : width;  // codes side by side
  for (int64_t j = 0; j < keys; ++j) {
    const char* row = rows[j];
    rows[j] = reinterpret_cast<const char*>(to);
    for (int64_t done = 0, offset = 0; done < heads * width; done += run, offset += stride, to += run) {
      if (cache.dtype == Dtype::f8e4m3)
        widen_codes(reinterpret_cast<const F8e4m3*>(row + offset), run, to);
      else
        widen_codes(reinterpret_cast<const F8e5m2*>(row + offset), run, to);
    }
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
