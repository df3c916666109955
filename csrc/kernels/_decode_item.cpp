// One item of a decode call: scores, online softmax and sums, block of keys after block. decode_block.h says in
// which order, decode_tiles.h, decode_pairs.h and decode_vectors.h multiply.
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 warns of its own intrinsics

#include "kernels/_decode_item.h"

#include <type_traits>

#include "attention/decode_pairs.h"
#include "attention/decode_tiles.h"
#include "attention/decode_vectors.h"
#include "core/path.h"
#include "core/scratch.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

// avx512_bf16: query heads a kv head, below which tiles are mostly padding.
constexpr int64_t kLeastTileHeads = 12;

// Of the keys of a block of codes, as numbers: with its values they stay in the second-level cache.
constexpr int64_t kWidenedBlockBytes = 36 << 10;

KP_PATH(decode_blocks);
KP_PATH(decode_rescaled);
KP_PATH(decode_fetched_ahead);

bool in_order(const KeyBlock& block, int64_t slot_stride) {
  for (int64_t j = 1; j < block.keys; ++j)
    if (block.k[j] - block.k[j - 1] != slot_stride) return false;
  return true;
}

// What an item is worked on with, in the scratch of a thread; blocks of `step` keys.
template <class Products>
struct ItemPieces {
  using Element = typename Products::Element;
  Products products;
  OnlineSoftmax softmax;
  float *scores, *row, *scales, *slopes;
  char* room;
  Element* queries;
  ItemPieces(const DecodeShape& s, int64_t step, BumpAllocator& allocator) : products(s, allocator) {
    softmax.columns = round_up(s.heads * products.columns, kLanes);
    softmax.top = allocator.take<float>(softmax.columns);
    softmax.sum = allocator.take<float>(softmax.columns);
    softmax.rescale = allocator.take<float>(softmax.columns);
    scores = allocator.take<float>(round_up(step, kPairTileKeys) * softmax.columns);
    row = allocator.take<float>(round_up(s.Dv, 32));
    scales = allocator.take<float>(softmax.columns);
    slopes = allocator.take<float>(softmax.columns);
    room = allocator.take<char>(step * s.codes.row_bytes);
    queries = allocator.take<Element>(s.heads * s.group * products.query_width());
  }

  // What settle() takes of each column.
  void set_scaling(const DecodeShape& s, const Scaling& scaling) {
    for (int64_t i = 0; i < softmax.columns; ++i) scales[i] = slopes[i] = 0;
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t g = 0, c = h * products.columns; g < s.group; ++g, ++c) {
        scales[c] = scaling.scale * (scaling.factors ? scaling.factors[h * scaling.factor_stride] : 1);
        if (scaling.slopes) slopes[c] = scaling.slopes[h * s.group + g];
      }
  }
};

template <class Products>
void run(const DecodeItemArguments& item) {
  using Pieces = ItemPieces<Products>;
  const DecodeShape& shape = item.shape;
  const Scaling& scaling = item.scaling;
  const DecodeSource& source = item.source;
  const int64_t first = item.first, last = item.last;
  const int64_t key_bytes = shape.heads * shape.D * static_cast<int64_t>(sizeof(typename Pieces::Element));
  const bool coded = shape.codes.row_bytes > 0;
  const int64_t block_bytes = coded ? kWidenedBlockBytes : Products::kBlockBytes;
  const int64_t step =
      most(kTileKeys, least(block_bytes / key_bytes, kMostBlockKeys) / kTileKeys * kTileKeys);
  BumpAllocator measure{nullptr};
  Pieces(shape, step, measure);
  BumpAllocator allocator{static_cast<char*>(thread_scratch(measure.used))};
  Pieces p(shape, step, allocator);
  OnlineSoftmax& softmax = p.softmax;

  source.queries(source.self, p.queries, p.products.query_width());
  p.products.set_queries(p.queries);
  softmax.start();
  // Columns that no product writes.
  for (int64_t i = shape.heads * p.products.columns; i < softmax.columns; ++i)
    for (int64_t j = 0; j < step; ++j) p.scores[j * softmax.columns + i] = 0;
  if (scaling.settles()) p.set_scaling(shape, scaling);

  KeyBlock blocks[2];
  const auto find_rows = [&](int64_t from, KeyBlock& block) {
    block.keys = least(step, last - from);
    source.rows(source.self, from, block);
    block.repeat_last_key();
  };
  find_rows(first, blocks[0]);
  for (int64_t j = first, turn = 0; j < last; j += step, turn ^= 1) {
    KeyBlock &block = blocks[turn], &next = blocks[turn ^ 1];
    block.ahead = nullptr;
    if (j + step < last) {
      find_rows(j + step, next);
      if (Products::kPrefetchInOrder || coded || !in_order(next, item.slot_stride)) block.ahead = &next;
    }
    if (coded) {
      source.widen(source.self, block, p.room);
      block.repeat_last_key();
    }
    p.products.scores(block, p.scores, softmax.columns);
    if (block.ahead) mark(paths::decode_fetched_ahead);
    if (scaling.settles()) softmax.settle(p.scores, block.keys, j, scaling, p.scales, p.slopes);
    const bool rose =
        softmax.step(p.scores, block.keys, round_up(block.keys, p.products.key_step()), scaling);
    if (j > first) mark(rose ? paths::decode_rescaled : paths::decode_blocks);
    if (rose && j > first) p.products.rescale(softmax.rescale);
    p.products.accumulate(block, p.scores, softmax.columns, j == first);
  }
  for (int64_t h = 0; h < shape.heads; ++h)
    for (int64_t g = 0; g < shape.group; ++g) {
      const int64_t column = h * p.products.columns + g;
      p.products.read(h, g, p.row);
      const float top = scaling.settles() ? softmax.top[column] : softmax.top[column] * scaling.scale;
      source.result(source.self, h, g, p.row, top, softmax.sum[column]);
    }
}

}  // namespace

// Tiles for bf16 where there are any, vectors else.
void _decode_item(const DecodeItemArguments& item) {
  const DecodeShape& shape = item.shape;
  with_float(item.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (kHasTiles && std::is_same_v<T, Bf16>) {
      if constexpr (kHasDotProducts) {
        if (shape.group < kLeastTileHeads && shape.accurate) return run<DecodeVectors<T>>(item);
        if (shape.group < kLeastTileHeads) return run<DecodePairs<T>>(item);
      }
      run<DecodeTiles>(item);
    } else {
      run<DecodeVectors<T>>(item);
    }
  });
}

}  // namespace kernelpair::KP_TIER
