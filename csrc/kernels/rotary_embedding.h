// What the kernel of rotary_embedding takes. Contract: docs/contracts/rotary_embedding.md.
#pragma once

#include "core/kernel.h"

namespace kernelpair {

struct RotaryEmbeddingArguments {
  const View& positions;  // [axes, T], one axis or three
  const View& query;      // [T, H, D]
  const View& key;        // [T, Hkv, D], or not defined
  const View& cache;      // [P, R]
  bool is_neox;
  bool interleaved;    // of three axes: pairs take them in turn, not in blocks
  int64_t section[3];  // pairs of each of three axes
};
KP_KERNEL(rotary_embedding, RotaryEmbeddingArguments);

}  // namespace kernelpair
