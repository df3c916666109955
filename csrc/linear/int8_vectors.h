// int8_linear on vectors: rows as quads of bytes, row blocks against panels of 32 outputs, exact sums in int32.
//
// | number       | value         | why                                                                      |
// |--------------|---------------|--------------------------------------------------------------------------|
// | kSliceBlocks | 32 / 12       | VNNI: 2048 k of a row block (12 KiB) stay in L1, and of two panels in    |
// |              |               | L2 (128 KiB), from where ten loads for 24 products keep up; otherwise    |
// |              |               | 768 k of a panel (24 KiB) stay in L1                                     |
// | kGroupRows   | 96            | rows that share one reading of a slice of the weights ...                |
// | kDeepByteBlocks | 64 / 32    | ... of which 4096 k (2048 without VNNI: 384 KiB) stay in L2; sums wait   |
// | kRunPanels   | 64            | ... for as many panels at a time: waiting sums of 768 KiB a thread       |
// | kChunkRows   | 1024          | bounds the copy of x at 1 KiB of memory for each k (2 without VNNI)      |
#pragma once

#include "core/parallel.h"
#include "core/path.h"
#include "core/scratch.h"
#include "linear/int8_parts.h"
#include "linear/quad_products.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kSliceBlocks = kHasVnni ? 32 : 12, kDeepByteBlocks = 64 / kQuadDwords;
constexpr int64_t kBlockQuads = kByteBlockWidth / 4;

KP_PATH(int8_vectors_few);
KP_PATH(int8_vectors_many);
KP_PATH(int8_vectors_slices);

// How far apart the weights and the sums of neighbouring panels are.
struct NextPanel {
  int64_t weights, sums;
};

// multiply_blocks() of as many half panels as a block of rows meets at a time.
template <int kRows, int kHalves, bool kStream>
KP_INLINE void multiply_halves(const uint32_t* x, int64_t row_dwords, const int8_t* weights, NextPanel next,
                               int64_t blocks, Ahead ahead, bool fresh, int32_t* kept) {
  I32x16 sums[kRows][kHalves] = {};
  const auto kept_at = [&](int r, int half) KP_LAMBDA_INLINE {
    return kept + half / 2 * next.sums + r * kPanelColumns + half % 2 * kLanes;
  };
#pragma GCC unroll 12
  for (int r = 0; !fresh && r < kRows; ++r)
#pragma GCC unroll 4
    for (int half = 0; half < kHalves; ++half) sums[r][half] = load_dwords(kept_at(r, half));
  for (int64_t b = 0; b < blocks; ++b, weights += kBlockBytes, x += kBlockQuads * kQuadDwords)
    add_quads<kStream>(sums, x, row_dwords, weights, {64, kHalfBlockBytes, next.weights}, kBlockQuads,
                       next.weights, ahead);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int half = 0; half < kHalves; ++half) store_dwords(kept_at(r, half), sums[r][half]);
}

// sums += rows x weights over `blocks` blocks; the quads of row r begin at r * row_dwords of x. The sums of row r
// lie at 32 r of their panel's.
template <int kRows, int kPanels, bool kStream>
KP_NOINLINE void multiply_blocks(const uint32_t* x, int64_t row_dwords, const int8_t* weights, NextPanel next,
                                 int64_t blocks, Ahead ahead, bool fresh, int32_t* kept) {
  constexpr int kHalves = kTogether<kRows, 2 * kPanels>;
  for (int half = 0; half < 2 * kPanels; half += kHalves, ahead.step = 0)
    multiply_halves<kRows, kHalves, kStream>(x, row_dwords, weights + half * kHalfBlockBytes, next, blocks,
                                             ahead, fresh, kept + half * kLanes);
}

// The rows `first` to `first + rows` of a call, one after the other as quads.
struct RowChunk {
  int64_t first, rows;
  uint32_t* quads;
};

struct VectorInt8 {
  const Int8LinearArguments& call;
  ChunkScales& scales;
  const ByteRows rows{call};
  int64_t N = call.out.sizes[1];
  int64_t blocks = call.data.sizes[1];  // of 64 k in a panel
  int64_t row_dwords = packed_row_dwords(blocks);
  Distance stream = byte_distance(element_count(call.data));

  // A cache line more than the quads: rows that lie a multiple of 4 KiB apart want the same few places of L1.
  static int64_t packed_row_dwords(int64_t blocks) { return blocks * kBlockQuads * kQuadDwords + 16; }

  KP_INLINE const int8_t* panel(int64_t p) const {
    return at<int8_t>(call.data, 0) + p * blocks * kBlockBytes;
  }

  // Row `row` of a chunk as quads, zeros behind K; `room` has place for its bytes.
  void pack_row(const RowChunk& chunk, int64_t row, int8_t* room) const {
    const int8_t* bytes = rows.row(chunk.first + row, room, scales.of_row[row]);
    uint32_t* quads = chunk.quads + row * row_dwords;
    int64_t k = 0;
    for (; k + 4 * kLanes <= rows.K; k += 4 * kLanes, quads += kLanes * kQuadDwords)
      spread_quads(bytes + k, quads);
    for (; k + 4 <= rows.K; k += 4, quads += kQuadDwords) spread_quad(bytes + k, quads);
    for (; k < blocks * kByteBlockWidth; k += 4, quads += kQuadDwords) {
      int8_t quad[4] = {};
      if (k < rows.K) __builtin_memcpy(quad, bytes + k, rows.K - k);
      spread_quad(quad, quads);
    }
  }

  // Rows `begin` to `end` of a chunk.
  void pack_rows(const RowChunk& chunk, int64_t begin, int64_t end) const {
    auto* room = static_cast<int8_t*>(thread_scratch(rows.K));
    for (int64_t row = begin; row < end; ++row) pack_row(chunk, row, room);
  }

  // `live` rows of a chunk from row `row` on, whose sums with panel p are complete.
  void finish(const RowChunk& chunk, int64_t row, int64_t live, int64_t p, const int32_t* kept) const {
    const PanelOutputs outputs(call, p);
    with_float(call.out.dtype, [&](auto element) {
      auto* out = at<decltype(element)>(call.out, chunk.first + row, p * kPanelColumns);
      for (int64_t r = 0; r < live; ++r, out += N, kept += kPanelColumns)
        outputs.store(out, kept, kept + kLanes, scales.of_row[row + r], kQuadShift);
    });
  }

  // One row block: the weights pass once, from memory to registers. Halves that come one after the other do so in every
  // slice, of which the second one is near by then.
  void multiply_few(const RowChunk& chunk, int64_t begin, int64_t end) const {
    alignas(64) int32_t kept[kByteRows * kPanelColumns];
    for (int64_t p = begin; p < end; ++p) {
      with_row_count<kByteRows>(chunk.rows, [&](auto count) {
        constexpr int kRows = decltype(count)::value;
        const int64_t slice = kTogether<kRows, 2> == 2 ? blocks : kSliceBlocks;
        for (int64_t from = 0; from < blocks; from += slice) {
          const int8_t* weights = panel(p) + from * kBlockBytes;
          const uint32_t* x = chunk.quads + from * kBlockQuads * kQuadDwords;
          const Ahead ahead{reinterpret_cast<const char*>(weights), kBlockBytes / kBlockQuads, stream};
          multiply_blocks<kRows, 1, true>(x, row_dwords, weights, {}, least(blocks - from, slice), ahead,
                                          from == 0, kept);
        }
      });
      finish(chunk, 0, chunk.rows, p, kept);
    }
  }

  // Blocks `from` to `until` of `kPanels` panels against a group of rows, a slice after the other; what comes next is
  // prefetched meanwhile.
  template <int kPanels>
  void multiply_group(const RowChunk& chunk, int64_t group, int64_t live, int64_t p, int64_t from,
                      int64_t until, int32_t* kept) const {
    const NextPanel next{blocks * kBlockBytes, kGroupRows * kPanelColumns};
    const int64_t share = kBlockBytes / kBlockQuads / divide_up(live, kByteRows) + 1;
    for (int64_t block = from, count; block < until; block += count) {
      count = least(until - block, kSliceBlocks);
      const int8_t* slice = panel(p) + block * kBlockBytes;
      const int8_t* then =
          block + count < until ? slice + count * kBlockBytes : panel(p + kPanels) + from * kBlockBytes;
      Ahead ahead{reinterpret_cast<const char*>(then), share};
      for (int64_t r = 0; r < live; r += kByteRows, ahead.at += share * count * kBlockQuads)
        with_row_count<kByteRows>(live - r, [&](auto block_rows) {
          const uint32_t* x = chunk.quads + (group + r) * row_dwords + block * kBlockQuads * kQuadDwords;
          constexpr int kRows = decltype(block_rows)::value;
          int32_t* sums = kept + r * kPanelColumns;
          multiply_blocks<kRows, kPanels, false>(x, row_dwords, slice, next, count, ahead, block == 0, sums);
        });
    }
    for (int i = 0; until == blocks && i < kPanels; ++i)
      finish(chunk, group, live, p + i, kept + i * next.sums);
  }

  // The same of panels `first` to `end`.
  void multiply_run(const RowChunk& chunk, int64_t group, int64_t live, int64_t first, int64_t end,
                    int64_t from, int64_t until, int32_t* kept) const {
    const auto kept_of = [&](int64_t p) { return kept + (p - first) * kGroupRows * kPanelColumns; };
    int64_t p = first;
    if constexpr (kBytePanels > 1)
      for (; p + kBytePanels <= end; p += kBytePanels)
        multiply_group<kBytePanels>(chunk, group, live, p, from, until, kept_of(p));
    for (; p < end; ++p) multiply_group<1>(chunk, group, live, p, from, until, kept_of(p));
  }

  // Rows in groups, panels in runs, k in deep slices.
  void multiply_many(const RowChunk& chunk, int64_t begin, int64_t end) const {
    const int64_t run = blocks > kDeepByteBlocks ? least(end - begin, kRunPanels) : kBytePanels;
    auto* kept = static_cast<int32_t*>(thread_scratch(4 * run * kGroupRows * kPanelColumns));
    for (int64_t group = 0; group < chunk.rows; group += kGroupRows) {
      const int64_t live = least(chunk.rows - group, kGroupRows);
      for (int64_t first = begin; first < end; first += run)
        for (int64_t from = 0; from < blocks; from += kDeepByteBlocks)
          multiply_run(chunk, group, live, first, least(first + run, end), from,
                       least(from + kDeepByteBlocks, blocks), kept);
    }
  }

  void multiply_panels(const RowChunk& chunk, int64_t begin, int64_t end) const {
    if (chunk.rows <= kByteRows) {
      mark(paths::int8_vectors_few);
      return multiply_few(chunk, begin, end);
    }
    mark(blocks > kDeepByteBlocks ? paths::int8_vectors_slices : paths::int8_vectors_many);
    multiply_many(chunk, begin, end);
  }

  void run() const {
    const int64_t M = call.out.sizes[0], panels = call.data.sizes[0], most = least(M, kChunkRows);
    auto* quads = static_cast<uint32_t*>(call_scratch(4 * round_up(most, kByteRows) * row_dwords));
    for (int64_t first = 0; first < M; first += most) {
      const RowChunk chunk{first, least(M - first, most), quads};
      // 30 us of rows that are quantized, at least.
      parallel_for(chunk.rows, (1 << 15) / row_dwords + 1,
                   [&](int64_t begin, int64_t end) { pack_rows(chunk, begin, end); });
      parallel_for(panels, panel_grain(chunk.rows / 4, blocks * kByteBlockWidth),
                   [&](int64_t begin, int64_t end) { multiply_panels(chunk, begin, end); });
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
