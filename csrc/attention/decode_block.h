// What the two products of a decode step share: the shape of an item, a block of keys, and the online softmax
// between them.
//
// An item is one request, one run of its keys (a split) and one run of its kv heads. It goes through its keys
// in blocks, every head inside, so that memory is read forward, token after token. Scores are kept with a key
// in each row:
//
//   scores [key][column]   column = kv head * columns a head + query head of the group
//
// so the softmax runs down the keys, sixteen heads in a vector, with no step across lanes and no mask: keys
// that do not exist are rows that are not visited. Rows of the last tile past the keys become weights of 0.
#pragma once

#include "kernels/_decode_item.h"
#include "simd/vec_math.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// Of the keys of a block of tiles or pairs: with its values, and the next block fetched, a third of the L2.
constexpr int64_t kWideBlockBytes = 144 << 10;
constexpr int64_t kPairTileKeys = 32;  // keys of a tile of weights whose values are interleaved in pairs

// The running softmax of `columns` heads (a multiple of 16): the largest score (settled if that is
// asked for, else raw), the sum of the weights relative to it, and what the last block multiplied older weights
// with.
struct OnlineSoftmax {
  float* top;
  float* sum;
  float* rescale;
  int64_t columns;

  void start() {
    for (int64_t c = 0; c < columns; c += kLanes) {
      store(top + c, splat(-__builtin_inff()));
      store(sum + c, zero());
    }
  }

  // Scores of `keys` rows become weights in place, rows up to `padded` become 0. True if a maximum rose.
  KP_NOINLINE bool step(float* scores, int64_t keys, int64_t padded, const Scaling& scaling) {
    bool rose = false;
    const F32x16 factor = splat(scaling.factor());
    for (int64_t c = 0; c < columns; c += kLanes) {
      float* column = scores + c;
      const F32x16 before = load(top + c);
      F32x16 high = before;
      for (int64_t j = 0; j < keys; ++j) high = max(high, load(column + j * columns));
      F32x16 total = load(sum + c);
      // Where all are -inf so far weights are 0, not exp2(-inf + inf).
      const F32x16 base = select(less(splat(-__builtin_inff()), high), high, zero());
      if (any(less(before, high))) {
        const F32x16 shrink = exp2((before - base) * factor);
        store(rescale + c, shrink);
        store(top + c, high);
        total = total * shrink;
        rose = true;
      } else {
        store(rescale + c, splat(1));
      }
      for (int64_t j = 0; j < keys; ++j) {
        // The largest score gives exactly 1.
        const F32x16 weight = exp2((load(column + j * columns) - base) * factor);
        store(column + j * columns, weight);
        total = total + weight;
      }
      for (int64_t j = keys; j < padded; ++j) store(column + j * columns, zero());
      store(sum + c, total);
    }
    return rose;
  }

  // Scales, caps and slopes the scores of `keys` rows, the first of which is key `first`; `scales` and `slopes` by
  // column.
  KP_NOINLINE void settle(float* scores, int64_t keys, int64_t first, const Scaling& scaling,
                          const float* scales, const float* slopes) {
    const F32x16 cap = splat(scaling.cap);
    for (int64_t j = 0; j < keys; ++j) {
      const F32x16 distance = splat(static_cast<float>(first + j - scaling.position));
      for (int64_t c = 0; c < columns; c += kLanes) {
        float* at_c = scores + j * columns + c;
        F32x16 z = load(at_c) * load(scales + c);
        if (scaling.cap > 0) z = cap * tanh(z / cap);
        store(at_c, scaling.slopes ? z + load(slopes + c) * distance : z);
      }
    }
  }
};

// A run of floats multiplied by one factor.
KP_INLINE void scale_floats(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * splat(factor));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
