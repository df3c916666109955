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
  float *scores, *row, *slopes;
  Element* queries;
  ItemPieces(const DecodeShape& s, int64_t step, BumpAllocator& allocator) : products(s, allocator) {
    softmax.columns = round_up(s.heads * products.columns, kLanes);
    softmax.top = allocator.take<float>(softmax.columns);
    softmax.sum = allocator.take<float>(softmax.columns);
    softmax.rescale = allocator.take<float>(softmax.columns);
    scores = allocator.take<float>(round_up(step, kPairTileKeys) * softmax.columns);
    row = allocator.take<float>(round_up(s.Dv, 32));
    slopes = allocator.take<float>(softmax.columns);
    queries = allocator.take<Element>(s.heads * s.group * products.query_width());
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
  const int64_t step =
      most(kTileKeys, least(Products::kBlockBytes / key_bytes, kMostBlockKeys) / kTileKeys * kTileKeys);
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
  if (scaling.slopes) {
    for (int64_t i = 0; i < softmax.columns; ++i) p.slopes[i] = 0;
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t g = 0; g < shape.group; ++g)
        p.slopes[h * p.products.columns + g] = scaling.slopes[h * shape.group + g];
  }

  KeyBlock blocks[2];
  blocks[0].keys = least(step, last - first);
  source.rows(source.self, first, blocks[0]);
  blocks[0].repeat_last_key();
  for (int64_t j = first, turn = 0; j < last; j += step, turn ^= 1) {
    KeyBlock &block = blocks[turn], &next = blocks[turn ^ 1];
    block.ahead = nullptr;
    if (j + step < last) {
      next.keys = least(step, last - j - step);
      source.rows(source.self, j + step, next);
      next.repeat_last_key();
      if (Products::kPrefetchInOrder || !in_order(next, item.slot_stride)) block.ahead = &next;
    }
    p.products.scores(block, p.scores, softmax.columns);
    if (block.ahead) mark(paths::decode_fetched_ahead);
    if (scaling.settles()) softmax.settle(p.scores, block.keys, j, scaling, p.slopes);
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
