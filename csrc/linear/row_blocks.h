// Blocks of rows whose sums stay in registers while weights stream past, for products on vectors.
#pragma once

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kRowBlock = kVectorBytes == 64 ? 12 : kVectorBytes == 32 ? 3 : 1;
constexpr int64_t kGroupRows = 96, kRunPanels = 64, kChunkRows = 1024;

template <int N>
struct Count {
  static constexpr int value = N;
};

// Calls body(Count<R>) with the smallest row block, of at most kMost, that holds `rows`.
template <int kMost = kRowBlock, class Body>
KP_INLINE void with_row_block(int64_t rows, const Body& body) {
  if (rows <= 1) return body(Count<1>{});
  if constexpr (kMost >= 2)
    if (rows <= 2) return body(Count<2>{});
  if constexpr (kMost > 4)
    if (rows <= 4) return body(Count<4>{});
  if constexpr (kMost > 8)
    if (rows <= 8) return body(Count<8>{});
  body(Count<kMost>{});
}

// What to prefetch beside a product: `step` bytes further on for each of its steps.
struct Ahead {
  const char* at;
  int64_t step;
};

// The stream of the weights themselves, into L1; or a share of the next slice, into L2.
template <bool kStream>
KP_INLINE void prefetch(Ahead& ahead) {
  __builtin_prefetch(ahead.at, 0, kStream ? 3 : 2);
  if constexpr (kStream)
    for (int64_t line = 64; line < ahead.step; line += 64) __builtin_prefetch(ahead.at + line, 0, 3);
  ahead.at += ahead.step;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
