// How prefill cuts its work, and the scratch of one thread.
//
// A unit is 32 query rows that share a kv head: positions and the query heads of the group, folded, heads
// fastest. A group of units shares every packed block of keys. The scratch holds the group's queries and
// sums, one block of keys and values, and the scores of one unit: it depends on head sizes only, never on a
// length.
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "core/scratch.h"
#include "core/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kUnitRows = 32;  // two row tiles: each operand tile is used twice
// Keys of a block: longer blocks rescale less, but must stay near with the scores.
constexpr int64_t kMostKeys = 256;
// Units that share a packed block: packing costs half a unit's work.
constexpr int64_t kMostUnits = 16;
// Of packed keys and values, and of queries and sums twice that: they share.
constexpr int64_t kPackedBytes = 192 << 10;
constexpr int64_t kGroupBytes = 448 << 10;  // a 2 MiB L2, of which a blocked loop keeps about a third

struct Blocking {
  int64_t score_width;  // of a packed query, in elements
  int64_t value_tiles;  // 16 columns each
  int64_t keys = 0;     // of a block, a multiple of 32
  int64_t units = 0;    // of a group
};

// For rows whose packed elements have `element_bytes`; a sum has four. A key is packed with its value, a
// query with its sums.
KP_INLINE Blocking plan_blocking(int64_t score_width, int64_t value_width, int64_t element_bytes) {
  Blocking b{.score_width = score_width, .value_tiles = 2 * divide_up(value_width, 32)};
  const int64_t key_bytes = (score_width + b.value_tiles * 16) * element_bytes;
  const int64_t row_bytes = score_width * element_bytes + b.value_tiles * 16 * 4;
  b.keys = clamp(kPackedBytes / key_bytes / 32 * 32, 32, kMostKeys);
  b.units = clamp(kGroupBytes / (row_bytes * kUnitRows), 1, kMostUnits);
  return b;
}

// Between rows of scores, in floats: 64 bytes more than the keys, so that rows do not fall into the same sets
// of the cache.
constexpr int64_t kScoreStride = kMostKeys + 16;

}  // namespace
}  // namespace kernelpair::KP_TIER
