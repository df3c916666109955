// The two products of a decode step on bf16 tiles. Cache rows go into the tiles as they lie in memory:
//
//   scores   S^T = K Q^T: sixteen keys are the rows of A, the queries of one kv head in pairs of d the
//            columns of B.
//   values   O = P V: sixteen rows of V are B, so that a pair of neighbouring d stands where the instruction
//            expects a pair of keys. A therefore holds each weight twice, in the low half of a dword for even
//            d, in the high half (a row further down) for odd d. The other half is 0. Those rows would be
//            padding anyway for up to 8 heads.
//
// From kPairedHeads heads that share a kv head on, the doubled products cost more than putting V in pairs of
// keys, with sixteen heads in the rows of A. That is a store for each row of B, between the products of the
// columns before. Which rows are taken in place and which are copied: row_tiles.h.
//
// An accurate call has each weight as the sum of two bf16 numbers, which keep 16 bits of it: behind the tiles
// of the first numbers stand those of the second ones, which meet the same values.
#pragma once

#include "attention/row_tiles.h"
#include "core/path.h"
#include "core/scratch.h"
#include "simd/transpose.h"
#include "tiles/dot_pairs.h"
#include "tiles/tile_block.h"
#include "tiles/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kExpandedHeads = 8;  // heads of an A tile whose weights stand in it twice
// Dot products: a padded row costs as much as any other.
constexpr int64_t kPairedHeads = kHasDotProducts ? 1 : kExpandedHeads + 1;
// Values are put in pairs while tiles multiply those before. Dot products and vectors have nothing to overlap.
constexpr bool kPairsAhead = !kHasDotProducts;

KP_PATH(decode_tiles_paired);
KP_PATH(decode_tiles_expanded);

struct DecodeTiles {
  using Element = Bf16;
  static constexpr bool kPrefetchInOrder = false;  // the hardware does better with rows in order
  static constexpr int64_t kBlockBytes = kWideBlockBytes;

  DecodeShape shape;
  int64_t depths, value_depths;  // tiles across a key and a value
  bool paired;
  int64_t parts;                  // bf16 numbers whose sum is a weight
  int64_t row_heads, row_groups;  // query heads of one A tile of weights, and tiles for a group
  int64_t rows;                   // rows of such a tile
  int64_t columns;                // score columns of a kv head
  int64_t query_stride;           // bytes from row to row of a packed query tile
  int64_t pair_width, pair_room;  // tiles across a value that are paired at a time, and that have room
  Bf16 *queries, *weights, *pairs, *k_copy, *v_copy;
  float* sums;
  RowTiles tiles;  // of the keys or the values of the head in hand

  DecodeTiles(const DecodeShape& s, BumpAllocator& allocator) : shape(s) {
    depths = divide_up(s.D, kDepth);
    value_depths = divide_up(s.Dv, kDepth);
    paired = s.group >= kPairedHeads;
    parts = s.accurate ? 2 : 1;
    row_heads = paired ? 16 : least(s.group, kExpandedHeads);
    row_groups = divide_up(s.group, row_heads);
    rows = paired ? 16 : 2 * row_heads;
    columns = s.group <= 16 ? s.group : round_up(s.group, 16);
    query_stride = 64;
    while (query_stride >= 8 * columns) query_stride /= 2;  // rows that never cross a cache line
    queries = allocator.take<Bf16>(s.heads * query_tiles() * query_tile());
    weights = allocator.take<Bf16>(parts * weight_room());
    sums = allocator.take<float>(s.heads * row_groups * value_depths * sum_tile());
    k_copy = allocator.take<Bf16>(kMostBlockKeys * depths * kDepth);
    v_copy = allocator.take<Bf16>(kMostBlockKeys * value_depths * kDepth);
    pair_width = row_groups == 1 ? 2 : 1;  // a block of four sums
    pair_room = kPairsAhead ? 2 * pair_width : pair_width;
    pairs = allocator.take<Bf16>(paired ? kMostBlockKeys * pair_room * kDepth : 0);
  }

  int64_t column_tiles() const { return divide_up(columns, 16); }
  int64_t query_tiles() const { return depths * column_tiles(); }
  int64_t query_tile() const { return 16 * query_stride / 2; }
  int64_t sum_tile() const { return rows * 16 * (paired ? 2 : 1); }  // floats of 32 columns of the result
  int64_t weight_room() const { return kMostBlockKeys / kTileKeys * weight_step(); }
  int64_t key_step() const { return paired ? kPairTileKeys : kTileKeys; }
  int64_t query_width() const { return depths * kDepth; }

  // Queries [heads * group][query_width], zero past D.
  KP_NOINLINE void set_queries(const Bf16* q) {
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t g = 0; g < columns; ++g) {
        const Bf16* row = g < shape.group ? q + (h * shape.group + g) * query_width() : nullptr;
        for (int64_t d = 0; d < depths; ++d) {
          char* tile =
              reinterpret_cast<char*>(queries + ((h * column_tiles() + g / 16) * depths + d) * query_tile());
          for (int64_t p = 0; p < 16; ++p)
            if (row)
              __builtin_memcpy(tile + p * query_stride + g % 16 * 4, row + d * kDepth + 2 * p, 4);
            else
              __builtin_memset(tile + p * query_stride + g % 16 * 4, 0, 4);
        }
      }
    __builtin_memset(weights, 0, parts * weight_room() * sizeof(Bf16));
  }

  // --- scores ----------------------------------------------------------------------------------------------

  KP_NOINLINE void scores(const KeyBlock& block, float* to, int64_t score_stride) {
    TileScope scope(score_tile());
    const int64_t count = divide_up(block.keys, 16), blocks = column_tiles(), step = blocks == 1 ? 4 : 2;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.k_head_stride;
      tiles.find(block.keys, block.k, offset, shape.D, k_copy);
      const Bf16* q = queries + h * query_tiles() * query_tile();
      const Following next = block.in_next_block<&KeyBlock::k>(shape, h);
      for (int64_t t = 0; t < count; t += step) {
        for (int64_t j = t * 16; j < (t + step) * 16; ++j) next.fetch<2>(j, 0, shape.D * 2);
        float* corner = to + h * columns + t * 16 * score_stride;
        if (blocks == 1) score_column(t, least(count - t, 4), q, corner, score_stride);
        for (int64_t c = 0; blocks > 1 && c < blocks; c += 2)
          score_square(t, least(count - t, 2), q + c * depths * query_tile(), least(blocks - c, 2),
                       corner + c * 16, score_stride);
      }
    }
  }

  // Sixteen keys, whatever their number: a block repeats its last one.
  KP_INLINE TileShape score_tile() const { return {16, static_cast<int>(least(columns, 16))}; }

  // Operands of a block: tiles of keys from tile t on, tiles of packed queries.
  auto key_tiles(int64_t t) const {
    return [=, this](int64_t i, int64_t d)
               KP_LAMBDA_INLINE { return TilePlace{tiles.start[t + i] + d * 64, tiles.stride[t + i]}; };
  }
  auto query_places(const Bf16* q) const {
    return [=, this](int64_t j, int64_t d)
               KP_LAMBDA_INLINE { return TilePlace{q + (j * depths + d) * query_tile(), query_stride}; };
  }

  // Up to four tiles of keys by one of heads.
  KP_NOINLINE void score_column(int64_t t, int64_t count, const Bf16* q, float* to, int64_t score_stride) {
    with_count<4>(count, [&](auto down) {
      block_product<down, 1>(score_tile(), key_tiles(t), query_places(q), depths, nullptr,
                             {to, 16 * score_stride, 16, score_stride * 4});
    });
  }

  // One or two tiles of keys by one or two of heads.
  KP_NOINLINE void score_square(int64_t t, int64_t down, const Bf16* q, int64_t across, float* to,
                                int64_t score_stride) {
    with_count<2>(down, [&](auto down) {
      with_count<2>(across, [&](auto across) {
        block_product<down, across>(score_tile(), key_tiles(t), query_places(q), depths, nullptr,
                                    {to, 16 * score_stride, 16, score_stride * 4});
      });
    });
  }

  // --- values ----------------------------------------------------------------------------------------------

  // weights [key][score_stride], zero from block.keys to a multiple of key_step(). Adds their products with V
  // to the sums.
  KP_NOINLINE void accumulate(const KeyBlock& block, const float* from, int64_t score_stride, bool first) {
    const int64_t steps = divide_up(block.keys, key_step());
    if (paired)
      mark(paths::decode_tiles_paired), pack_paired_weights(from, score_stride, steps);
    else if constexpr (kPairedHeads > 1)
      mark(paths::decode_tiles_expanded), pack_expanded_weights(from, score_stride, steps);
    const TileShape tile{static_cast<int>(rows), 16};
    TileScope scope(tile);
    for (int64_t h = 0; h < shape.heads; ++h) {
      find_value_tiles(block, h);
      const Following next = block.in_next_block<&KeyBlock::v>(shape, h);
      for (int64_t j = 0; j < next.keys && !shape.shared; ++j) next.fetch<2>(j, 0, shape.Dv * 2);
      const Bf16* p = weights + h * row_groups * rows * kDepth;
      float* c = sums + h * row_groups * value_depths * sum_tile();
      if (paired)
        pair_products(tile, p, block.keys, steps, c, first);
      else
        for (int64_t d = 0; d < value_depths; d += 4)
          value_product(tile, p, d, least(value_depths - d, 4), steps, c, first);
    }
  }

  KP_NOINLINE void find_value_tiles(const KeyBlock& block, int64_t h) {
    if (shape.shared && shape.heads == 1) return;  // the tiles of the scores are still there
    tiles.find(block.keys, block.v, h * shape.v_head_stride, shape.Dv, v_copy);
  }

  int64_t weight_step() const { return shape.heads * row_groups * rows * kDepth; }

  DenseTiles weight_tiles(const Bf16* p) const { return {p, rows * kDepth * 2, weight_step() * 2}; }

  // One tile of weights by up to four of values as they lie in memory.
  KP_NOINLINE void value_product(TileShape tile, const Bf16* p, int64_t d, int64_t across, int64_t steps,
                                 float* c, bool first) {
    const BlockSums to{c + d * sum_tile(), 0, sum_tile()};
    const auto v = [=, this](int64_t j, int64_t step) KP_LAMBDA_INLINE {
      const int64_t s = step < steps ? step : step - steps;
      return TilePlace{tiles.start[s] + (d + j) * 64, tiles.stride[s]};
    };
    const BlockSums* from = first ? nullptr : &to;
    with_count<4>(across,
                  [&](auto n) { block_product<1, n>(tile, weight_tiles(p), v, parts * steps, from, to); });
  }

  // All weights of a head by its values in pairs of keys. Columns outermost: pairs stay in the first-level cache.
  KP_NOINLINE void pair_products(TileShape tile, const Bf16* p, int64_t keys, int64_t steps, float* c,
                                 bool first) {
    for (int64_t d = 0; d < value_depths; d += pair_width) {
      if (!kPairsAhead || d == 0)
        for (int64_t s = 0; s < steps; ++s) pair_values(keys, s, d);
      for (int64_t g = 0; g < row_groups; g += 2) {
        const auto between = [&](int64_t s, int, int part) KP_LAMBDA_INLINE {
          if (kPairsAhead && part == 0 && g == 0 && s < steps) pair_values(keys, s, d + pair_width);
        };
        pair_product(tile, p + g * rows * kDepth, least(row_groups - g, 2), d, steps,
                     c + g * value_depths * sum_tile(), first, between);
      }
    }
  }

  // One tile of sixteen heads by four tiles of sixteen columns, or one or two by two: 32 columns of values in
  // pairs are two tiles.
  template <class Between>
  KP_NOINLINE void pair_product(TileShape tile, const Bf16* p, int64_t down, int64_t d, int64_t steps,
                                float* c, bool first, const Between& between) {
    const BlockSums to{c + d * sum_tile(), value_depths * sum_tile()};
    const DenseTiles values{pair_tiles(0, d), kTileHalves * 2, pair_room * 4 * kTileHalves};
    const auto v = [=](int j, int64_t s) KP_LAMBDA_INLINE { return values(j, s < steps ? s : s - steps); };
    const auto multiply = [&](auto down, auto across) KP_LAMBDA_INLINE {
      block_product<down, across>(tile, weight_tiles(p), v, parts * steps, first ? nullptr : &to, to,
                                  between);
    };
    if (least(pair_width, value_depths - d) == 2)
      multiply(std::integral_constant<int, 1>(), std::integral_constant<int, 4>());
    else
      with_count<2>(down, [&](auto n) { multiply(n, std::integral_constant<int, 2>()); });
  }

  // [32 keys][32 columns, of pair_room][even, odd columns][pair][column][2].
  Bf16* pair_tiles(int64_t step, int64_t d) const {
    return pairs + (step * pair_room + d % pair_room) * 2 * kTileHalves;
  }

  // Puts 32 keys in pairs, of pair_width tiles across a value from tile d on.
  KP_NOINLINE void pair_values(int64_t keys, int64_t step, int64_t d) {
    for (int64_t i = d; i < least(d + pair_width, value_depths); ++i)
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t t = 2 * step + half;
        const bool there = t * kTileKeys < keys;  // the second tile of a step may not exist
        Bf16* to = pair_tiles(step, i) + half * kTileHalves / 2;
        if (there)
          pair_rows(tiles.start[t] + i * 64, tiles.stride[t], to);
        else
          __builtin_memset(to, 0, kTileHalves), __builtin_memset(to + kTileHalves, 0, kTileHalves);
      }
  }

  // Thirty-two columns of sixteen rows: the even ones in pairs of rows, and in the next tile the odd ones.
  KP_INLINE static void pair_rows(const char* row, int64_t stride, Bf16* to) {
    const I32x16 low = splat_int(0xffff), high = shift_left<16>(low);
    for (int p = 0; p < kTileKeys / 2; ++p, row += 2 * stride, to += kDepth) {
      const I32x16 first = load_dwords(row), second = load_dwords(row + stride);
      store_dwords(to, (first & low) | shift_left<16>(second));
      store_dwords(to + kTileHalves, shift_right<16>(first) | (second & high));
    }
  }

  // Sixteen keys by sixteen columns of scores to rows of weights: [key step][kv head][row][key].
  KP_NOINLINE void pack_expanded_weights(const float* from, int64_t score_stride, int64_t steps) {
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t c = 0; c < shape.heads * columns; c += 16) {
        I32x16 all[16];
        for (int j = 0; j < 16; ++j) all[j] = as_int(load(from + (s * 16 + j) * score_stride + c));
        transpose(all);
        for (int i = 0; i < 16; ++i) {
          const int64_t h = (c + i) / columns, g = (c + i) % columns;
          if (h >= shape.heads) continue;
          F32x16 rest = as_float(all[i]);
          for (int64_t part = 0; part < parts; ++part) {
            Bf16* tile = weights + (part * steps + s) * weight_step() + h * rows * kDepth;
            const I32x16 bits = bf16_bits(rest);
            store_dwords(tile + g * kDepth, bits);
            store_dwords(tile + (row_heads + g) * kDepth, shift_left<16>(bits));
            rest = rest - as_float(shift_left<16>(bits));
          }
        }
      }
  }

  // With 32 keys in a row, each weight once: [key step][kv head][tile of the group][row][key].
  KP_NOINLINE void pack_paired_weights(const float* from, int64_t score_stride, int64_t steps) {
    for (int64_t s = 0; s < 2 * steps; ++s)
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t g = 0; g < shape.group; g += 16) {
          I32x16 bits[16];
          for (int j = 0; j < 16; ++j)
            bits[j] = as_int(load(from + (s * 16 + j) * score_stride + h * columns + g));
          transpose(bits);
          Bf16* tile =
              weights + s / 2 * weight_step() + (h * row_groups + g / 16) * rows * kDepth + s % 2 * 16;
          for (int i = 0; i < 16; ++i) {
            const F32x16 weight = as_float(bits[i]);
            store(tile + i * kDepth, weight);
            if (parts > 1)
              store(tile + steps * weight_step() + i * kDepth,
                    weight - as_float(shift_left<16>(bf16_bits(weight))));
          }
        }
  }

  // --- results ---------------------------------------------------------------------------------------------

  // Multiplies the sums of every head with its entry of `factors` [columns of all heads].
  KP_NOINLINE void rescale(const float* factors) {
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t g = 0; g < shape.group; ++g) {
        const float factor = factors[h * columns + g];
        if (factor == 1) continue;
        float* row = sum_row(h, g);
        for (int64_t d = 0; d < value_depths; ++d, row += sum_tile()) {
          scale_floats(row, 16, factor);
          scale_floats(row + odd_columns(), 16, factor);
        }
      }
  }

  float* sum_row(int64_t h, int64_t g) const {
    return sums + (h * row_groups + g / row_heads) * value_depths * sum_tile() + g % row_heads * 16;
  }
  int64_t odd_columns() const { return paired ? 256 : row_heads * 16; }

  // The sums of one query head in the order of its columns, round_up(Dv, 32) of them.
  void read(int64_t h, int64_t g, float* to) const {
    const float* row = sum_row(h, g);
    for (int64_t d = 0; d < value_depths; ++d, row += sum_tile(), to += kDepth) {
      F32x16 even = load(row), odd = load(row + odd_columns());
      interleave(even, odd);
      store(to, even);
      store(to + 16, odd);
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
