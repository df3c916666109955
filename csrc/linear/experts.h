// Token-expert pairs in the order of their experts, and a projection of all of them: each expert's rows times its
// weight, to rows of floats.
//
// | number       | value | why                                                                         |
// |--------------|-------|-----------------------------------------------------------------------------|
// | kChunkPairs  | 4096  | bounds the buffers: a prompt of 512 tokens with 8 experts each is one chunk, |
// | kExpertPairs | 32    | or so many for each expert, for every chunk reads the weights of all of them |
// | kReadRows    | 8     | reading a panel of weights costs as much as the products of so many rows     |
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/fused_moe.h"
#include "linear/parts.h"
#include "linear/row_blocks.h"
#include "simd/vec_math.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kChunkPairs = 4096, kExpertPairs = 32, kReadRows = 8;

// Rows `first` to `first + rows` of the sorted pairs, all of one expert; packed, they begin at group `group`.
struct ExpertRows {
  int64_t expert, first, rows, group;

  // Group i of them, of `length` rows but for the last.
  KP_INLINE ExpertRows part(int64_t i, int64_t length) const {
    return {expert, first + i * length, least(rows - i * length, length), group + i};
  }
};

struct SortedPairs {
  int32_t* pair;   // [rows] the pair of a row: token k + j
  int32_t* place;  // [pairs] the row of a pair, -1 of a pad
  ExpertRows* blocks;
  int64_t rows, block_count;
};

// Entry e of a stack: what follows its first dimension.
KP_INLINE View entry_of(const View& stack, int64_t e) {
  View entry = stack;
  if (!stack.defined) return entry;
  entry.data = at(stack, e);
  entry.dim = stack.dim - 1;
  for (int d = 0; d < entry.dim; ++d) {
    entry.sizes[d] = stack.sizes[d + 1];
    entry.strides[d] = stack.strides[d + 1];
  }
  return entry;
}

// Sorts by counting: pairs of one expert keep their order. An expert has one block for each kChunkRows rows.
struct PairSorter {
  const View& ids;  // [T, k], or absent: one expert
  int64_t experts, k;

  static int64_t most_blocks(int64_t experts, int64_t pairs) {
    return least(experts, pairs) + pairs / kChunkRows;
  }

  KP_INLINE int64_t expert_of(int64_t pair) const {
    return ids.defined ? index_at(ids, pair / k, pair % k) : 0;
  }

  // Pairs `begin` to `begin + count`; `starts` has room for E + 1.
  KP_NOINLINE void sort(int64_t begin, int64_t count, int64_t* starts, SortedPairs& sorted) const {
    for (int64_t e = 0; e <= experts; ++e) starts[e] = 0;
    for (int64_t i = 0; i < count; ++i) ++starts[expert_of(begin + i) + 1];  // pads are -1
    starts[0] = 0;
    sorted.block_count = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t rows = starts[e + 1];
      starts[e + 1] += starts[e];
      for (int64_t row = 0; row < rows; row += kChunkRows)
        sorted.blocks[sorted.block_count++] = {e, starts[e] + row, least(rows - row, kChunkRows), 0};
    }
    sorted.rows = starts[experts];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t e = expert_of(begin + i);
      sorted.place[i] = e < 0 ? -1 : static_cast<int32_t>(starts[e]);
      if (e >= 0) sorted.pair[starts[e]++] = static_cast<int32_t>(i);
    }
  }
};

// Calls body(block, begin, end) for runs of panels, of which threads share the work evenly, whatever an expert's load.
template <class Body>
void for_each_panel(const SortedPairs& sorted, int64_t panels, int64_t grain, const Body& body) {
  const int64_t work = panels * (sorted.rows + kReadRows * sorted.block_count);
  parallel_for(work, grain, [&](int64_t begin, int64_t end) {
    int64_t start = 0;
    for (int64_t b = 0; b < sorted.block_count && start < end; ++b) {
      const int64_t cost = sorted.blocks[b].rows + kReadRows;
      const int64_t from = least(divide_up(most(begin - start, 0), cost), panels);
      const int64_t until = least(divide_up(end - start, cost), panels);
      if (from < until) body(sorted.blocks[b], from, until);
      start += panels * cost;
    }
  });
}

// Calls body(block, i) for group i of each block's rows; body packs it.
template <class Body>
void for_each_group(const SortedPairs& sorted, int64_t group_rows, int64_t grain, const Body& body) {
  int64_t total = 0;
  for (int64_t b = 0; b < sorted.block_count; ++b) total += divide_up(sorted.blocks[b].rows, group_rows);
  parallel_for(total, grain, [&](int64_t begin, int64_t end) {
    int64_t start = 0;
    for (int64_t b = 0; b < sorted.block_count && start < end; ++b) {
      const int64_t groups = divide_up(sorted.blocks[b].rows, group_rows);
      for (int64_t i = most(begin - start, 0); i < least(end - start, groups); ++i) body(sorted.blocks[b], i);
      start += groups;
    }
  });
}

// Rows of x, each by the token of its pair.
template <class T>
struct GatheredRows {
  struct Row {
    const T* row;
    KP_INLINE F32x16 operator()(int64_t k, int lanes) const { return load(row + k, lanes); }
  };
  const View& x;
  const int32_t* pair;
  int64_t topk;

  KP_INLINE int64_t columns() const { return x.sizes[1]; }
  KP_INLINE Row row(int64_t m) const { return {at<T>(x, pair[m] / topk)}; }
};

// silu(gate) up of the rows of h, [gate, up] each.
struct ActivatedRows {
  struct Row {
    const float *gate, *up;
    KP_INLINE F32x16 operator()(int64_t k, int lanes) const {
      return silu(load(gate + k, lanes)) * load(up + k, lanes);
    }
  };
  const float* h;
  int64_t inner;

  KP_INLINE int64_t columns() const { return inner; }
  KP_INLINE Row row(int64_t m) const { return {h + 2 * inner * m, h + 2 * inner * m + inner}; }
};

// All rows of a source times the weights of their experts. An Engine packs rows in groups and multiplies them with
// panels:
//   kRows, group_bytes(weights), weights, grain(), panels()
//   pack(source, part, rows, to), part of so many rows of an expert
//   multiply(block, packed, begin, end)
template <class Engine, class Source>
void project(const Engine& engine, const Source& source, SortedPairs& sorted, char* packed) {
  int64_t groups = 0;
  for (int64_t b = 0; b < sorted.block_count; ++b) {
    sorted.blocks[b].group = groups;
    groups += divide_up(sorted.blocks[b].rows, Engine::kRows);
  }
  const int64_t bytes = Engine::group_bytes(engine.weights);
  for_each_group(sorted, Engine::kRows, (1 << 19) / bytes + 1, [&](const ExpertRows& block, int64_t i) {
    const ExpertRows part = block.part(i, Engine::kRows);
    engine.pack(source, part, block.rows, packed + part.group * bytes);
  });
  for_each_panel(sorted, engine.panels(), engine.grain(),
                 [&](const ExpertRows& block, int64_t begin, int64_t end) {
    engine.multiply(block, packed + block.group * bytes, begin, end);
  });
}

}  // namespace
}  // namespace kernelpair::KP_TIER
