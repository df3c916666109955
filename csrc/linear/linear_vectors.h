// packed_linear on vectors, for every dtype and tier: x in fp32, row blocks against panels of 32 outputs.
//
// | number           | value       | why                                                                  |
// |------------------|-------------|----------------------------------------------------------------------|
// | kRowBlock        | 12 / 6 / 1  | AVX512 / AVX2 / scalar: sums in 24 of 32 registers, 12 of 16 (one    |
// |                  |             | half of a panel at a time: 12 products need two weights and six      |
// |                  |             | numbers of x, where 3 rows and both halves are a register short),    |
// |                  |             | 8 of 16                                                              |
// | kWidenedBlocks   | 12 / 6      | AVX512: 384 k of a panel in fp32 (48 KiB) stay in L2, from where 14  |
// |                  |             | loads for 24 products keep up; otherwise 192 k (24 KiB) in L1        |
// | kFloatGroupRows  | 264         | rows that share one reading and widening of the weights              |
// | kDeepBlocks      | 12          | 384 k of a group of rows (396 KiB) stay in L2; sums wait ...         |
// | kFloatRunPanels  | 24          | ... for as many panels at a time: waiting sums of 792 KiB a thread   |
// | kChunkRows       | 1024        | bounds the fp32 copy of x at 4 KiB of memory for each k              |
//
// A single row block needs no widened copy: it reads the packed weights once, from memory to registers.
// Several row blocks prefetch the weights of the next slice into L2 while they multiply.
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/packed_linear.h"
#include "linear/parts.h"
#include "linear/row_blocks.h"
#include "simd/pairs.h"
#include "simd/transpose.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kWidenedBlocks = kVectorBytes == 64 ? 12 : 6;
constexpr int64_t kDeepBlocks = 12, kFloatGroupRows = 264, kFloatRunPanels = 24;

KP_PATH(linear_vectors_few);
KP_PATH(linear_vectors_many);
KP_PATH(linear_vectors_slices);

// Sixteen outputs at two neighbouring k, from a packed tile: pairs of 16-bit elements stand side by side,
// floats in rows.
template <class T>
KP_INLINE void load_outputs(const T* tile, int pair, F32x16& even, F32x16& odd) {
  if constexpr (sizeof(T) == 2)
    load_split(tile + kPair * pair, even, odd);
  else
    load_pair(tile + kPair * pair, even, odd);
}

// multiply_blocks() of one half of a panel, or of both.
template <int kRows, int kHalves, bool kStream, class T>
KP_INLINE void multiply_halves(const float* x, const T* weights, int64_t blocks, Ahead ahead, bool fresh,
                               float* kept) {
  F32x16 sums[kRows][kHalves] = {};
#pragma GCC unroll 12
  for (int r = 0; !fresh && r < kRows; ++r)
    for (int half = 0; half < kHalves; ++half) sums[r][half] = load(kept + r * kPanelColumns + half * kLanes);
  for (int64_t b = 0; b < blocks; ++b, weights += kBlockElements)
    for (int pair = 0; pair < kBlockK / 2; ++pair, x += 2 * kRows) {
      prefetch<kStream>(ahead);
      F32x16 columns[2][kHalves];  // of each k
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half)
        load_outputs(weights + half * kBlockElements / 2, pair, columns[0][half], columns[1][half]);
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k)
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const F32x16 number = splat(x[k * kRows + r]);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half)
            sums[r][half] = fma(number, columns[k][half], sums[r][half]);
        }
    }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < kHalves; ++half) store(kept + r * kPanelColumns + half * kLanes, sums[r][half]);
}

// sums += x w over `blocks` blocks of 32 k; x holds kRows values for each k. The sums of row r lie at 32 r of `kept`.
template <int kRows, bool kStream, class T>
KP_NOINLINE void multiply_blocks(const float* x, const T* weights, int64_t blocks, Ahead ahead, bool fresh,
                                 float* kept) {
  constexpr int kHalves = kTogether<kRows, 2>;
  for (int half = 0; half < 2; half += kHalves, ahead.step = 0)
    multiply_halves<kRows, kHalves, kStream>(x, weights + half * kBlockElements / 2, blocks, ahead, fresh,
                                             kept + half * kLanes);
}

// One row in fp32: elements k .. k + lanes of it.
template <class T>
struct StridedRow {
  const T* row;
  int64_t stride;
  KP_INLINE F32x16 operator()(int64_t k, int lanes) const { return load_columns(row, stride, k, lanes); }
};

template <class T>
struct StridedRows {
  using Row = StridedRow<T>;
  const Rows& x;
  KP_INLINE int64_t columns() const { return x.columns(); }
  KP_INLINE Row row(int64_t m) const { return {x.row<T>(m), x.column_stride()}; }
};

// Sixteen columns of a block of rows, as [k][kRows].
template <int kRows>
KP_NOINLINE void store_columns(F32x16 (&lines)[16], float* to) {
  if constexpr (kRows == 1) {
    store(to, lines[0]);
  } else {
    transpose(lines);
    for (int i = 0; i < kLanes; ++i) store(to + i * kRows, lines[i], kRows);
  }
}

// One block of rows of a source as [k][rows] in fp32, as many rows as with_row_count makes of `live`; k padded to whole
// blocks with 0.
template <class Source>
void pack_row_block(const Source& x, int64_t first, int64_t live, float* to) {
  const int64_t K = x.columns();
  typename Source::Row rows[kRowBlock];
  for (int r = 0; r < live; ++r) rows[r] = x.row(first + r);
  for (int64_t k = 0; k < round_up(K, kBlockK); k += kLanes) {
    const int lanes = lanes_left(K - k < 0 ? 0 : K - k);
    F32x16 lines[16] = {};
    for (int r = 0; r < live; ++r) lines[r] = rows[r](k, lanes);
    with_row_count<kRowBlock>(live, [&](auto count) {
      constexpr int kRows = decltype(count)::value;
      store_columns<kRows>(lines, to + k * kRows);
    });
  }
}

// `count` blocks of a packed weight in fp32: where they are so, or at `to`.
KP_INLINE const float* widen(const float* weights, int64_t, float*) { return weights; }

template <class Narrow>
const float* widen(const Narrow* weights, int64_t count, float* to) {
  for (int64_t tile = 0; tile < 2 * count; ++tile, weights += kBlockElements / 2)
    for (int pair = 0; pair < kBlockK / 2; ++pair) {
      F32x16 even, odd;
      load_outputs(weights, pair, even, odd);
      store(to + tile * kBlockElements / 2 + 32 * pair, even);
      store(to + tile * kBlockElements / 2 + 32 * pair + 16, odd);
    }
  return to;
}

// A panel of x's own dtype, of kBlockUnits elements a block. One row block, of at most kStraightRows, reads it as it
// lies, as it does all kinds of panels that are straight; others are widened for any.
template <class T>
struct PackedPanels {
  using Element = T;
  static constexpr int64_t kBlockUnits = kBlockElements;
  static constexpr int kStraightRows = kRowBlock;

  Distance stream = kStreamDistance;

  bool is_straight() const { return true; }

  static void mark_way(bool few, bool sliced) {
    mark(few      ? paths::linear_vectors_few
         : sliced ? paths::linear_vectors_slices
                  : paths::linear_vectors_many);
  }

  // Halves that come one after the other do so in every slice, of which the second one is near by then.
  template <int kRows>
  void multiply_one(const float* x, const T* weights, int64_t, int64_t blocks, float* kept) const {
    const int64_t slice = kTogether<kRows, 2> == 2 ? blocks : kWidenedBlocks;
    for (int64_t from = 0; from < blocks; from += slice, weights += slice * kBlockElements) {
      const Ahead ahead{reinterpret_cast<const char*>(weights), 2 * kPanelColumns * (int64_t)sizeof(T),
                        stream};
      multiply_blocks<kRows, true>(x + from * kBlockK * kRows, weights, least(blocks - from, slice), ahead,
                                   from == 0, kept);
    }
  }

  // `count` blocks of panel p from `block` on, which begin at `weights`; in fp32.
  const float* widened(const T* weights, int64_t, int64_t, int64_t count, float* to) const {
    return widen(weights, count, to);
  }
};

// Packed rows that are multiplied with one panel after another, and the block of results they end with.
template <class Panels>
struct VectorProduct {
  using Element = typename Panels::Element;

  const View &packed, &bias, &out;
  int64_t blocks = packed.sizes[1];  // blocks of 32 k in a panel
  int64_t block_floats = kRowBlock * blocks * kBlockK;

  const Panels kind;

  VectorProduct(const View& packed_weight, const View& call_bias, const View& result,
                const Panels& panel_kind = {})
      : packed(packed_weight), bias(call_bias), out(result), kind(panel_kind) {}

  KP_INLINE const Element* panel(int64_t p) const {
    return static_cast<const Element*>(packed.data) + p * blocks * Panels::kBlockUnits;
  }

  // One row block: the weights pass once, from memory to registers.
  void multiply_one(const float* x_block, int64_t first, int64_t live, int64_t p) const {
    alignas(64) float kept[kRowBlock * kPanelColumns];
    with_row_count<Panels::kStraightRows>(live, [&](auto count) {
      kind.template multiply_one<decltype(count)::value>(x_block, panel(p), p, blocks, kept);
    });
    finish(kept, first, live, p);
  }

  // Blocks `from` to `end` of one panel, against up to kFloatGroupRows rows. A slice of the panel is widened once
  // for all of them; the sums of the group wait in `kept` until k is through. Meanwhile the slice behind it is
  // prefetched, or what lies at `next`.
  void multiply_group(const float* x_blocks, int64_t first, int64_t rows, int64_t p, int64_t from,
                      int64_t end, const Element* next, float* widened, float* kept) const {
    for (; from < end; from += kWidenedBlocks) {
      const int64_t count = end - from < kWidenedBlocks ? end - from : kWidenedBlocks;
      const Element* packed_slice = panel(p) + from * Panels::kBlockUnits;
      const float* weights = kind.widened(packed_slice, p, from, count, widened);
      const Element* behind = from + count < end ? packed_slice + count * Panels::kBlockUnits : next;
      const int64_t pair_bytes = 2 * Panels::kBlockUnits / kBlockK * sizeof(Element);
      const int64_t share = pair_bytes / divide_up(rows, kRowBlock) + 1;
      Ahead ahead{reinterpret_cast<const char*>(behind), share};
      for (int64_t r = 0; r < rows; r += kRowBlock) {
        const int64_t live = least(rows - r, kRowBlock);
        float* sums = kept + r * kPanelColumns;
        with_row_count<kRowBlock>(live, [&](auto block_rows) {
          constexpr int kRows = decltype(block_rows)::value;
          const float* x = x_blocks + r * blocks * kBlockK + from * kBlockK * kRows;
          multiply_blocks<kRows, false>(x, weights, count, ahead, from == 0, sums);
        });
        if (from + count == blocks) finish(sums, first + r, live, p);
        ahead.at += share * count * kBlockK / 2;
      }
    }
  }

  // The first `live` of rows of sums as results.
  void finish(const float* sums, int64_t first, int64_t live, int64_t p) const {
    store_rows(out, bias, first, live, p,
               [sums](int64_t r, int half) { return sums + r * kPanelColumns + half * kLanes; });
  }

  // A group of rows against up to kFloatRunPanels panels, a deep slice of k after the other.
  void multiply_near(const float* x_blocks, int64_t first, int64_t rows, int64_t begin, int64_t end,
                     float* widened, float* kept) const {
    for (int64_t from = 0; from < blocks; from += kDeepBlocks) {
      const int64_t until = blocks - from < kDeepBlocks ? blocks : from + kDeepBlocks;
      for (int64_t p = begin; p < end; ++p) {
        const Element* next = p + 1 < end      ? panel(p + 1) + from * Panels::kBlockUnits
                              : until < blocks ? panel(begin) + until * Panels::kBlockUnits
                                               : panel(end);
        multiply_group(x_blocks, first, rows, p, from, until, next, widened,
                       kept + (p - begin) * kFloatGroupRows * kPanelColumns);
      }
    }
  }

  void multiply_panels(const float* x_blocks, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    const bool few = rows <= kRowBlock;
    if (rows <= Panels::kStraightRows && kind.is_straight()) {
      for (int64_t p = begin; p < end; ++p) multiply_one(x_blocks, first, rows, p);
      return;
    }
    const int64_t run = few ? 1 : least(end - begin, kFloatRunPanels);
    auto* widened = static_cast<float*>(
        thread_scratch(4 * (kWidenedBlocks * kBlockElements + run * kFloatGroupRows * kPanelColumns)));
    float* kept = widened + kWidenedBlocks * kBlockElements;
    for (int64_t group = 0; group < rows; group += kFloatGroupRows) {
      const int64_t group_rows = rows - group < kFloatGroupRows ? rows - group : kFloatGroupRows;
      for (int64_t p = begin; p < end; p += run)
        multiply_near(x_blocks + group * blocks * kBlockK, first + group, group_rows, p,
                      p + run < end ? p + run : end, widened, kept);
    }
  }

  void multiply_run(const PanelRun& run) const {
    multiply_panels(static_cast<const float*>(run.packed), run.first, run.rows, run.begin, run.end);
  }
};

// The whole layer, for rows x of the dtype of its result.
template <class Panels>
struct VectorLinear : VectorProduct<Panels> {
  using Product = VectorProduct<Panels>;
  using Product::packed, Product::out, Product::blocks, Product::block_floats;
  const Rows x;

  VectorLinear(const View& rows, const View& packed_weight, const View& panel_bias, const View& result,
               const Panels& panel_kind = {})
      : Product(packed_weight, panel_bias, result, panel_kind), x{rows} {}

  void pack_rows(int64_t first, int64_t rows, float* to) const {
    parallel_for(divide_up(rows, kRowBlock), (1 << 18) / block_floats + 1, [&](int64_t begin, int64_t end) {
      with_vector_float(x.x.dtype, [&](auto element) {
        const StridedRows<decltype(element)> source{x};
        for (int64_t row = begin * kRowBlock; row < least(end * kRowBlock, rows); row += kRowBlock)
          pack_row_block(source, first + row, least(rows - row, kRowBlock),
                         to + row / kRowBlock * block_floats);
      });
    });
  }

  void run() const {
    const int64_t M = out.sizes[0], panels = packed.sizes[0];
    const int64_t chunk = M < kChunkRows ? M : kChunkRows;
    auto* x_blocks = static_cast<float*>(call_scratch(4 * divide_up(chunk, kRowBlock) * block_floats));
    for (int64_t first = 0; first < M; first += chunk) {
      const int64_t rows = M - first < chunk ? M - first : chunk;
      pack_rows(first, rows, x_blocks);
      Panels::mark_way(rows <= kRowBlock, blocks > kDeepBlocks);
      parallel_for(panels, panel_grain(rows, blocks * kBlockK), [&](int64_t begin, int64_t end) {
        this->multiply_panels(x_blocks, first, rows, begin, end);
      });
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
