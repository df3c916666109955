// How prefill cuts its work, and the scratch of one thread.
//
// A unit is 32 query rows that share a kv head: positions and the query heads of the group, folded, heads fastest. A group of
// units shares every packed block of keys. The scratch holds the group's queries and sums, one block of keys and values, and
// the scores of one unit: it depends on head sizes only, never on a length.
#pragma once

#include <cstdint>

#include "common/scratch.h"
#include "common/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kUnitRows = 32;           // two row tiles: each operand tile is used twice
constexpr int64_t kMostKeys = 256;          // keys of a block: longer blocks rescale less, but must stay near with the scores
constexpr int64_t kMostUnits = 16;          // units that share a packed block: packing costs half a unit's work
constexpr int64_t kPackedBytes = 192 << 10;  // of packed keys and values, and of queries and sums twice that: they share
constexpr int64_t kGroupBytes = 448 << 10;  // a 2 MiB L2, of which a blocked loop keeps about a third

struct Blocking {
  int64_t score_width;  // of a packed query, in elements
  int64_t value_tiles;  // 16 columns each
  int64_t keys;         // of a block, a multiple of 32
  int64_t units;        // of a group
};

KP_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

// key_bytes: one packed key with its value; row_bytes: one packed query row with its sums.
KP_INLINE void choose_sizes(Blocking& b, int64_t key_bytes, int64_t row_bytes) {
  b.keys = clamp(kPackedBytes / key_bytes / 32 * 32, 32, kMostKeys);
  b.units = clamp(kGroupBytes / (row_bytes * kUnitRows), 1, kMostUnits);
}

// Between rows of scores, in floats: 64 bytes more than the keys, so that rows do not fall into the same sets of the cache.
constexpr int64_t kScoreStride = kMostKeys + 16;

}  // namespace
}  // namespace kernelpair::KP_TIER
