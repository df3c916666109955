// Rows of a cache as tiles of sixteen keys: in place where their addresses are evenly spaced and their width
// fills tiles, else copied to a buffer and padded with zeros. Nothing past the rows is ever read.
#pragma once

#include "attention/decode_block.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kDepth = 32;  // bf16 elements in a tile's row

struct RowTiles {
  const char* start[kMostBlockKeys / kTileKeys];
  int64_t stride[kMostBlockKeys / kTileKeys];  // bytes from key to key

  // One head of a block of keys: `width` elements of each row, `offset` bytes from its address on. `copy` has
  // room for them all.
  KP_NOINLINE void find(int64_t keys, const char* const* rows, int64_t offset, int64_t width, Bf16* copy) {
    const int64_t padded = round_up(width, kDepth);
    for (int64_t t = 0; t * kTileKeys < keys; ++t) {
      const char* const* from = rows + t * kTileKeys;
      const int64_t live = least(keys - t * kTileKeys, kTileKeys);
      if (width == padded && live == kTileKeys && evenly_spaced(from)) {
        start[t] = from[0] + offset;
        stride[t] = from[1] - from[0];
        continue;
      }
      Bf16* to = copy + t * kTileKeys * padded;
      start[t] = reinterpret_cast<char*>(to);
      stride[t] = padded * 2;
      for (int64_t j = 0; j < kTileKeys; ++j, to += padded) {
        const int64_t bytes = j < live ? width * 2 : 0;
        if (bytes) copy_row(to, from[j] + offset, bytes);
        __builtin_memset(reinterpret_cast<char*>(to) + bytes, 0, padded * 2 - bytes);
      }
    }
  }

 private:
  static void copy_row(Bf16* to, const char* from, int64_t bytes) {
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) store_dwords(reinterpret_cast<char*>(to) + i, load_dwords(from + i));
    __builtin_memcpy(reinterpret_cast<char*>(to) + i, from + i, bytes - i);
  }

  static bool evenly_spaced(const char* const* rows) {
    const int64_t step = rows[1] - rows[0];
    int64_t difference = 0;
    for (int j = 2; j < kTileKeys; ++j) difference |= (rows[j] - rows[j - 1]) ^ step;
    return difference == 0;
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
