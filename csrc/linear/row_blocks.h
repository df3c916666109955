// Blocks of rows whose sums stay in registers while weights stream past, for products on vectors.
#pragma once

#include "linear/parts.h"
#include "simd/bytes.h"
#include "simd/row_counts.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr bool kHasVnni = kQuadDwords == 1;

// Rows of a block, and those that meet both halves of a panel at once; more of them meet one half at a time.
constexpr int kRowBlock = kVectorBytes == 64 ? 12 : kVectorBytes == 32 ? 6 : 1;
constexpr int kBothHalvesRows = kVectorBytes == 32 ? 3 : kRowBlock;
constexpr int64_t kGroupRows = 96, kRunPanels = 64, kChunkRows = 1024;

// Of `kHalves` half panels, how many a block of rows meets at a time.
template <int kRows, int kHalves>
constexpr int kTogether = kRows > kBothHalvesRows ? 1 : kHalves;

// How far ahead few rows read the weights of a call, `bytes` in all, for products of bytes. Those of VNNI wait for nothing
// else: while the last cache holds the weights, one step of 4 KiB into L1 takes 0.94 to 0.96 of the time, and with weights
// in memory 1.01 to 1.02 (Emerald Rapids).
constexpr int64_t kOneStepAhead = 128 << 20;
KP_INLINE Distance byte_distance(int64_t bytes) {
  return kHasVnni && bytes <= kOneStepAhead ? Distance{0, 4 << 10} : kStreamDistance;
}

// What to prefetch beside a product: `step` bytes further on for each of its steps.
struct Ahead {
  const char* at;
  int64_t step;
  Distance stream = kStreamDistance;
};

// Ahead of the weights themselves, which are a stream; or a share of the next slice, into L2.
template <bool kStream>
KP_INLINE void prefetch(Ahead& ahead) {
  if constexpr (kStream)
    for (int64_t line = 0; line < ahead.step; line += 64) prefetch_stream(ahead.at + line, ahead.stream);
  else
    __builtin_prefetch(ahead.at, 0, 2);
  ahead.at += ahead.step;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
