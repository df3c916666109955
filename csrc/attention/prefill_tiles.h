// Both products of prefill on bf16 tiles. Everything a product reads lies in tiles of 1 KiB in the order of
// its loop:
//
//   queries [row tile][chunk of 32 d][16 rows][32]        A of the scores
//   keys    [16 keys][chunk of 32 d][16 d pairs][16][2]   B of the scores
//   weights [row tile][32 keys][16 rows][32]              A of the values
//   values  [16 dv][32 keys][16 key pairs][16][2]         B of the values
//   sums    [row tile][16 dv][16 rows][16] float          C of the values
//
// The products go in blocks of 2x2 tiles, four C tiles that use each operand twice; 1x2 where a unit has up
// to 16 rows.
#pragma once

#include "attention/prefill_plan.h"
#include "simd/float8.h"
#include "simd/transpose.h"
#include "tiles/tile_block.h"
#include "tiles/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

struct TileProducts {
  using Scope = TileScope;                                  // what a thread holds while it works
  static constexpr int64_t kElementBytes = 2;               // of what the products read
  static constexpr int64_t kDepth = 32;                     // score widths are padded to whole tiles
  static constexpr int64_t kTile = 512, kTileBytes = 1024;  // bf16 elements of a tile

  Blocking blocking;
  Bf16 *queries, *keys, *weights, *values;
  float* sums;
  Bf16* staging;  // 16 rows of a float8 cache, converted

  // Columns of a unit's 32 rows in `sums`: the first, and the step from 16 columns to the next.
  static constexpr int64_t kSumStride = 256;
  KP_INLINE float* sum_row(int64_t unit, int64_t row) const {
    return sums + ((unit * 2 + row / 16) * blocking.value_tiles * 16 + row % 16) * 16;
  }

  void allocate(BumpAllocator& allocator, const Blocking& chosen) {
    blocking = chosen;
    const int64_t score = blocking.score_width, value = blocking.value_tiles * 16;
    queries = allocator.take<Bf16>(blocking.units * kUnitRows * score);
    sums = allocator.take<float>(blocking.units * kUnitRows * value);
    keys = allocator.take<Bf16>(blocking.keys * score);
    values = allocator.take<Bf16>(blocking.keys * value);
    weights = allocator.take<Bf16>(kUnitRows * blocking.keys);
    staging = allocator.take<Bf16>(16 * (score > value ? score : value));
  }

  KP_INLINE int64_t chunks() const { return blocking.score_width / 32; }

  // One part of the width of a unit's query rows, from column `first` of the scores' width on.
  void pack_queries(int64_t unit, const char* const* rows, Dtype, int64_t first, int64_t width) {
    for (int64_t r = 0; r < kUnitRows; ++r) {
      Bf16* to = queries + ((unit * 2 + r / 16) * chunks() + first / 32) * kTile + r % 16 * 32;
      for (int64_t d = 0; d < width; d += 32, to += kTile) {
        store_dwords(to, rows[r] ? load_bytes(rows[r] + d * 2, (width - d) * 2) : I32x16{});
      }
    }
  }

  void pack_keys(const char* const* rows, int64_t count, Dtype dtype, int64_t first, int64_t width) {
    for (int64_t j = 0; j < count; j += 16) {
      const char* sixteen[16];
      stage(rows + j, dtype, width, sixteen);
      Bf16* to = keys + (j / 16 * chunks() + first / 32) * kTile;
      for (int64_t d = 0; d < width; d += 32, to += kTile) {
        I32x16 block[16];
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r)
          block[r] = sixteen[r] ? load_bytes(sixteen[r] + d * 2, (width - d) * 2) : I32x16{};
        transpose(block);
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) store_dwords(to + r * 32, block[r]);
      }
    }
  }

  void pack_values(const char* const* rows, int64_t count, Dtype dtype, int64_t width) {
    for (int64_t j = 0; j < count; j += 16) {
      const char* sixteen[16];
      stage(rows + j, dtype, width, sixteen);
      for (int pair = 0; pair < 8; ++pair) {
        Bf16* to = values + j / 32 * kTile + (j % 32 / 2 + pair) * 32;
        for (int64_t d = 0; d < width; d += 32) {
          const I32x16 even = value_piece(sixteen[2 * pair], d, width),
                       odd = value_piece(sixteen[2 * pair + 1], d, width);
          store_dwords(to, interleave(even, odd, 0));
          store_dwords(to + blocking.keys * 16, interleave(even, odd, 1));
          to += blocking.keys * 32;
        }
      }
    }
  }

  // Scores of a unit against packed keys [begin, end), multiples of 32, into rows of `scores`.
  void score(int64_t unit, int64_t rows, int64_t begin, int64_t end, float* scores) const {
    const int64_t row = chunks() * kTileBytes;
    const DenseTiles a{queries + unit * 2 * chunks() * kTile, row, kTileBytes};
    for (int64_t j = begin; j < end; j += 32)
      multiply(rows, a, {keys + j / 16 * chunks() * kTile, row, kTileBytes}, chunks(), nullptr,
               {scores + j, 16 * kScoreStride, 16, kScoreStride * 4});
  }

  KP_INLINE void store_weights(float*, int64_t row, int64_t key, F32x16 low, F32x16 high) const {
    Bf16* to = weights + (row / 16 * (blocking.keys / 32) + key / 32) * kTile + row % 16 * 32;
    store_dwords(to, pack_row(low, high));
  }

  // sums (+)= weights x values over the keys [begin, end).
  void accumulate(int64_t unit, int64_t rows, int64_t begin, int64_t end, bool fresh, const float*) const {
    const int64_t tile_stride = blocking.keys * 32;
    const DenseTiles a{weights + begin / 32 * kTile, tile_stride, kTileBytes};
    for (int64_t n = 0; n < blocking.value_tiles; n += 2) {
      const BlockSums c{sums + (unit * 2 * blocking.value_tiles + n) * 256, blocking.value_tiles * 256};
      multiply(rows, a, {values + n * blocking.keys * 16 + begin / 32 * kTile, tile_stride, kTileBytes},
               (end - begin) / 32, fresh ? nullptr : &c, c);
    }
  }

 private:
  KP_INLINE static void multiply(int64_t rows, const DenseTiles& a, const DenseTiles& b, int64_t steps,
                                 const BlockSums* from, const BlockSums& to) {
    if (rows > 16)
      block_product<2, 2>({}, a, b, steps, from, to);
    else
      block_product<1, 2>({}, a, b, steps, from, to);
  }

  // Sixteen rows of 16-bit elements: the caller's own, or converted from float8 (which loses nothing).
  template <class F8>
  void convert(const char* const* rows, int64_t width, const char* (&to)[16]) const {
    const int64_t stride =
        blocking.score_width > blocking.value_tiles * 16 ? blocking.score_width : blocking.value_tiles * 16;
    for (int r = 0; r < 16; ++r) {
      Bf16* row = staging + r * stride;
      to[r] = rows[r] ? reinterpret_cast<const char*>(row) : nullptr;
      // Whole lines, which loads can take from the store buffer.
      for (int64_t d = 0; rows[r] && d < width; d += 32) {
        const F8* from = reinterpret_cast<const F8*>(rows[r]) + d;
        const F32x16 low = load(from, lanes_left(width - d));
        const F32x16 high = width - d > kLanes ? load(from + kLanes, lanes_left(width - d - kLanes)) : zero();
        store_dwords(row + d, pack_row(low, high));
      }
    }
  }

  KP_INLINE void stage(const char* const* rows, Dtype dtype, int64_t width, const char* (&to)[16]) const {
    if (dtype == Dtype::f8e4m3) return convert<F8e4m3>(rows, width, to);
    if (dtype == Dtype::f8e5m2) return convert<F8e5m2>(rows, width, to);
    for (int r = 0; r < 16; ++r) to[r] = rows[r];
  }

  KP_INLINE static I32x16 value_piece(const char* row, int64_t d, int64_t width) {
    return row ? load_bytes(row + d * 2, (width - d) * 2) : I32x16{};
  }

  // Elements 16 half.. of two rows, side by side.
  KP_INLINE static I32x16 interleave(I32x16 even, I32x16 odd, int half) {
    return load_u16(reinterpret_cast<const char*>(&even) + half * 32) |
           shift_left<16>(load_u16(reinterpret_cast<const char*>(&odd) + half * 32));
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
