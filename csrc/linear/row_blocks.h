// Blocks of rows whose sums stay in registers while weights stream past, for products on vectors.
#pragma once

#include "simd/row_counts.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kRowBlock = kVectorBytes == 64 ? 12 : kVectorBytes == 32 ? 3 : 1;
constexpr int64_t kGroupRows = 96, kRunPanels = 64, kChunkRows = 1024;

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
