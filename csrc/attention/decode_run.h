// Runs the items of a decode call, and merges the splits of a request.
//
// A Source says where an item's operands are and where its result goes:
//
//   void queries(Element* to, int64_t width)
//       dense rows of `width` elements, kv head after kv head, zero past D
//   void rows(int64_t first, KeyBlock& block)
//       addresses of block.keys keys from key `first` of the request on
//   void result(int64_t h, int64_t g, float* sums, float top, float sum)
//       sums of weights times values, of which `sum` is the sum of weights, relative to the score `top`;
//       may be changed in place
#pragma once

#include <type_traits>

#include "attention/decode_pairs.h"
#include "attention/decode_tiles.h"
#include "attention/decode_vectors.h"
#include "core/parallel.h"
#include "core/path.h"
#include "core/scratch.h"

namespace kernelpair::KP_TIER {
namespace {

// 60 us of reading, about the price of waking a thread that sleeps.
constexpr int64_t kSerialBytes = 1 << 20;
// avx512_bf16: query heads a kv head, below which tiles are mostly padding.
constexpr int64_t kLeastTileHeads = 12;
constexpr int64_t kLeastSplit = 64;  // keys: shorter splits cost more in the merge than they bring

KP_PATH(decode_one_split);
KP_PATH(decode_splits);
KP_PATH(decode_merged);
KP_PATH(decode_head_parts);
KP_PATH(decode_blocks);
KP_PATH(decode_rescaled);
KP_PATH(decode_fetched_ahead);
KP_PATH(decode_no_keys);

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

// One item: keys [first, last), of which consecutive slots lie `slot_stride` bytes apart.
template <class Products, class Source>
void run_item_with(const DecodeShape& shape, const Scaling& scaling, int64_t first, int64_t last,
                   int64_t slot_stride, const Source& source) {
  using Pieces = ItemPieces<Products>;
  const int64_t key_bytes = shape.heads * shape.D * static_cast<int64_t>(sizeof(typename Pieces::Element));
  const int64_t step =
      most(kTileKeys, least(Products::kBlockBytes / key_bytes, kMostBlockKeys) / kTileKeys * kTileKeys);
  BumpAllocator measure{nullptr};
  Pieces(shape, step, measure);
  BumpAllocator allocator{static_cast<char*>(thread_scratch(measure.used))};
  Pieces p(shape, step, allocator);
  OnlineSoftmax& softmax = p.softmax;

  source.queries(p.queries, p.products.query_width());
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
  source.rows(first, blocks[0]);
  blocks[0].repeat_last_key();
  for (int64_t j = first, turn = 0; j < last; j += step, turn ^= 1) {
    KeyBlock &block = blocks[turn], &next = blocks[turn ^ 1];
    block.ahead = nullptr;
    if (j + step < last) {
      next.keys = least(step, last - j - step);
      source.rows(j + step, next);
      next.repeat_last_key();
      if (Products::kPrefetchInOrder || !in_order(next, slot_stride)) block.ahead = &next;
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
      source.result(h, g, p.row, top, softmax.sum[column]);
    }
}

// Tiles for bf16 where there are any, vectors else.
template <class T, class Source>
void run_item(const DecodeShape& shape, const Scaling& scaling, int64_t first, int64_t last,
              int64_t slot_stride, const Source& source) {
  if constexpr (kHasTiles && std::is_same_v<T, Bf16>) {
    if constexpr (kHasDotProducts) {
      if (shape.group < kLeastTileHeads && shape.accurate)
        return run_item_with<DecodeVectors<T>>(shape, scaling, first, last, slot_stride, source);
      if (shape.group < kLeastTileHeads)
        return run_item_with<DecodePairs<T>>(shape, scaling, first, last, slot_stride, source);
    }
    run_item_with<DecodeTiles>(shape, scaling, first, last, slot_stride, source);
  } else {
    run_item_with<DecodeVectors<T>>(shape, scaling, first, last, slot_stride, source);
  }
}

// How a call is cut: each request into at most `splits` runs of keys of at least `target` keys, a multiple of
// `granule`; and into runs of kv heads where that leaves threads idle.
struct SplitPlan {
  int64_t splits;
  int64_t target;
  int64_t granule;
  int64_t head_parts;

  int64_t split_keys(int64_t keys) const {
    const int64_t parts = least(splits, most(1, divide_up(keys, target)));
    return round_up(divide_up(keys, parts), granule);
  }
  int64_t splits_of(int64_t keys) const {
    const int64_t length = split_keys(keys);
    return keys ? divide_up(keys, length) : 0;
  }
};

// A single request is cut into as many splits as there are threads; several ones so that the last item to end
// is a short one.
KP_INLINE SplitPlan plan_splits(int64_t most_splits, int64_t requests, int64_t total_keys, int64_t longest,
                                int64_t heads) {
  const int64_t threads = thread_count(), parts = requests == 1 ? threads : 2 * threads;
  SplitPlan plan;
  plan.target = most(kLeastSplit, divide_up(total_keys, parts));
  plan.granule = kTileKeys;
  plan.splits = least(most_splits, most(1, divide_up(longest, plan.target)));
  const int64_t items = requests * plan.splits;
  plan.head_parts = items >= threads ? 1 : least(heads, divide_up(threads, items));
  mark(plan.splits > 1 ? paths::decode_splits : paths::decode_one_split);
  if (plan.head_parts > 1) mark(paths::decode_head_parts);
  return plan;
}

// The caller's number of splits, however short they are.
KP_INLINE SplitPlan literal_splits(int64_t splits) { return {splits, 1, 1, 1}; }

// Calls body(item) for every item, threads taking the next one as they get free.
template <class Body>
void for_each_item(int64_t items, int64_t bytes, const Body& body) {
  int64_t next = 0;
  const int64_t workers = bytes < kSerialBytes && !loops_are_split() ? 1 : least(items, thread_count());
  parallel_for(workers, 1, [&](int64_t, int64_t) {
    for (int64_t i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); i < items;
         i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED))
      body(i);
  });
}

// Partial results of one query head in float32: a normalised row of Dv, and its log-sum-exp. Of any
// alignment.
struct Partial {
  float* row;
  float* lse;
  float load_lse() const {
    float value;
    __builtin_memcpy(&value, lse, sizeof value);
    return value;
  }
};

KP_NOINLINE void write_partial(Partial to, int64_t Dv, const float* sums, float top, float sum) {
  for (int64_t d = 0; d < Dv; d += kLanes) {
    const int live = lanes_left(Dv - d);
    store(to.row + d, load(sums + d) / splat(sum), live);
  }
  const float lse = top + __builtin_logf(sum);
  __builtin_memcpy(to.lse, &lse, sizeof lse);
}

// Writes sums / (sum + sink), both relative to `top`.
template <class T>
KP_NOINLINE void write_result(T* to, int64_t Dv, const float* sums, float top, float sum, float sink) {
  const float high = top > sink ? top : sink;
  const float shrink = top == high ? 1.0f : __builtin_expf(top - high);
  const F32x16 factor = splat(shrink), total = splat(sum * shrink + __builtin_expf(sink - high));
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, load(sums + d) * factor / total, lanes_left(Dv - d));
}

// Splits partial(0), partial(1), ... of one query head become its result; `row` has room for Dv floats.
template <class T, class Partials>
KP_NOINLINE void merge_splits(T* to, int64_t Dv, int64_t splits, const Partials& partial, float sink,
                              float* row) {
  mark(paths::decode_merged);
  float high = sink;
  for (int64_t s = 0; s < splits; ++s) high = __builtin_fmaxf(high, partial(s).load_lse());
  float total = __builtin_expf(sink - high);
  for (int64_t d = 0; d < Dv; ++d) row[d] = 0;
  for (int64_t s = 0; s < splits; ++s) {
    const Partial part = partial(s);
    const float weight = __builtin_expf(part.load_lse() - high);
    total += weight;
    for (int64_t d = 0; d < Dv; d += kLanes) {
      const int live = lanes_left(Dv - d);
      store(row + d, fma(splat(weight), load(part.row + d, live), load(row + d)), live);
    }
  }
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, load(row + d) / splat(total), lanes_left(Dv - d));
}

template <class T>
void write_zeros(T* to, int64_t Dv) {
  mark(paths::decode_no_keys);
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, zero(), lanes_left(Dv - d));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
