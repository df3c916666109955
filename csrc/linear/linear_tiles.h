// Linear layers on tiles: x in tile order, or its rows where they lie if vectors multiply them, and panels of 32 outputs
// streamed past it. TileLinear is packed_linear's, for bf16; that of bytes is in int8_tiles.h.
//
// | number        | value         | why                                                                     |
// |---------------|---------------|-------------------------------------------------------------------------|
// | up to 16 rows | tile rows = M | sums stay in two tiles over all k; only the weight stream costs         |
// | up to 64 rows | whole k       | x stays in L2 whole; no sums are spilled                                |
// | kPassRows     | 128           | rows of x that stay in L2 for a slice of k ...                          |
// | kSliceSteps   | 64            | ... of 4 KiB: 512 KiB; spilled once a slice (75 ns for 1 us of products) |
// | kDotRows      | 64            | ... where vectors multiply, which take the panels from L2 more often     |
// | kDecodedRows  | 256           | ... or what was decoded: 128 rows, of which x fits L2, took 1.03 of it    |
// | kTilePanels   | 8             | panels that are read from memory once, 2 MiB at K = 4096, ...            |
// | kNearRows     | 256           | ... for as many rows: x, of the same size, comes from L3 for each run    |
// | kStreamAhead  | 8 KiB         | few rows: prefetch the stream into L2, 1.5x when the weight lies in L3;  |
// |               |               | where vectors multiply two lines at a time, 1.2x (16 rows, in L3) to 2x  |
// |               |               | of 32                                                                    |
// | kNearestRows  | 4             | ... for as many into L1 too (parts.h): 8 rows took 1.1 times as long     |
// | kLinesAStep   | 8             | many rows: prefetch the next panel into L2 meanwhile                    |
// | kChunkRows    | 1024          | bounds the copy of x at 2 KiB of memory for each k                      |
// | kSpreadBytes  | 8 KiB         | rows are copied where their distance is a multiple of more: 64 of them   |
// |               |               | then share a quarter of the lines of L2 or less                         |
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "kernels/packed_linear.h"
#include "linear/parts.h"
#include "linear/row_blocks.h"
#include "tiles/dot_pairs.h"
#include "tiles/tile_block.h"
#include "tiles/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kTileBytes = 1024, kPairRows = 32;
constexpr int64_t kPassRows = 128, kDotRows = 64, kDecodedRows = 256, kSliceSteps = 64, kWholeRows = 64;
constexpr int64_t kNearRows = 256, kTilePanels = 8, kNearestRows = 4, kLinesAStep = 8, kSpreadBytes = 8 << 10;
constexpr int64_t kStreamAhead = 8 << 10;
constexpr int64_t kBlockFloats = 1024;  // a 2 x 2 block of sums
constexpr int64_t kSpillPanels = 16;    // whose sums wait at a time in a run: 256 or 512 KiB a thread

// From one tile of packed rows to the next along k. Sixteen rows or fewer lie next to each other: a KiB apart
// their lines would have a sixteenth of the sets of L1 (1 x 4,096 x 4,096: 1.1 times as long on Zen 4).
KP_INLINE int64_t row_tile_bytes(int64_t rows) { return rows <= kTileRows ? 64 * rows : kTileBytes; }

// A line of the weights that `rows` rows wait for: into L1, or into L2 where vectors multiply more than kNearestRows.
KP_INLINE void prefetch_few(const char* line, int64_t rows) {
  if (kBlockParts == 1 || rows <= kNearestRows)
    prefetch_stream(line);
  else
    __builtin_prefetch(line + kStreamAhead, 0, 2);
}

// Between the parts of a step of few rows: lines of the weights' stream.
struct StreamAhead {
  static constexpr int64_t kPartBytes = 2 * kTileBytes / kBlockParts;
  const char* at;
  int64_t rows;
  KP_INLINE void operator()(int64_t step, int pass, int part) const {
    for (int64_t line = 0; pass == 0 && line < kPartBytes; line += 64)
      prefetch_few(at + step * 2 * kTileBytes + part * kPartBytes + line, rows);
  }
};

// Between the steps of many rows: `lines` of the next panel, into L2.
struct PanelAhead {
  const char*& at;
  int64_t lines;
  KP_INLINE void operator()(int64_t, int, int part) const {
    if (part > 0) return;
    for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(at + 64 * line, 0, 2);
    at += 64 * lines;
  }
};

KP_PATH(linear_tiles_few);
KP_PATH(linear_tiles_whole);
KP_PATH(linear_tiles_slices);
KP_PATH(linear_rows_in_place);

// What every kind of element shares, for a panel and a row of x are the same bytes in each. A Kind has its
// Product, and
//   void pack_tile_rows(first, live, to, step)  // sixteen rows of x as tiles along k, `step` bytes apart
//   void finish(sums, first, rows, p)           // what becomes of the block of sums that tiles hold
// and, where its weights are not those that tiles read, or its rows need no packing, what has a default here:
// kDecodes, kStepBytes, panel_tiles, multiply_few, rows_in_place and tiles_in_place.
template <class Kind>
struct PanelTiles {
  static constexpr bool kDecodes = false;
  static constexpr int64_t kStepBytes = 2 * kTileBytes;  // of a panel
  static constexpr int64_t rows_in_place = 0;  // the first of x, which tiles_in_place finds where they lie

  const View &packed, &out;
  int64_t N = out.sizes[1];
  int64_t steps = packed.sizes[1];  // of 64 bytes along k

  PanelTiles(const View& packed_weight, const View& result) : packed(packed_weight), out(result) {}

  KP_INLINE const Kind& kind() const { return *static_cast<const Kind*>(this); }

  KP_INLINE const char* panel(int64_t p, int64_t step) const {
    return static_cast<const char*>(packed.data) + (p * steps + step) * Kind::kStepBytes;
  }

  // Tiles of a panel from `step` on, `count` steps of them.
  KP_INLINE DenseTiles panel_tiles(int64_t p, int64_t step, int64_t) const {
    return {panel(p, step), kTileBytes, 2 * kTileBytes};
  }

  // Two tile rows from `row` of the packed ones on.
  KP_INLINE DenseTiles packed_tiles(const char* x_tiles, int64_t row, int64_t step) const {
    return {x_tiles + (row / kTileRows * steps + step) * kTileBytes, steps * kTileBytes, kTileBytes};
  }

  void pack_rows(int64_t first, int64_t rows, char* to, int64_t step) const {
    parallel_for(divide_up(rows, kTileRows), (1 << 20) / (steps * kTileBytes) + 1,
                 [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        kind().pack_tile_rows(first + b * kTileRows,
                              rows - b * kTileRows < kTileRows ? rows - b * kTileRows : kTileRows,
                              to + b * steps * kTileBytes, step);
    });
  }

  // Up to sixteen rows against panels: bound by the weight stream.
  void multiply_few(const char* x_tiles, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    using Product = typename Kind::Product;
    const TileShape shape{static_cast<int>(rows), kTileRows};
    TileScope scope(shape);
    alignas(64) float sums[512];
    for (int64_t p = begin; p < end; ++p) {
      block_product<1, 2, Product>(shape, DenseTiles{x_tiles, 0, row_tile_bytes(rows)},
                                   panel_tiles(p, 0, steps), steps, nullptr, {sums},
                                   StreamAhead{panel(p, 0), rows});
      kind().finish(sums, first, rows, p);
    }
  }

  // Up to kPassRows rows, from `pass` of the chunk on, against a run of panels; `spilled` keeps the sums of every
  // pair of tile rows and panel between slices of k.
  void multiply_pass(const char* x_tiles, int64_t first, int64_t pass, int64_t rows, int64_t begin,
                     int64_t end, bool whole, float* spilled) const {
    using Product = typename Kind::Product;
    // Lines of a step of the next panel.
    const int64_t lines = least(kLinesAStep, divide_up(Kind::kStepBytes / 64, block_passes(rows)));
    const int64_t slice = whole ? steps : kSliceSteps;
    for (int64_t step = 0; step < steps; step += slice) {
      const int64_t count = steps - step < slice ? steps - step : slice;
      for (int64_t p = begin; p < end; ++p) {
        const char* ahead = p + 1 < end            ? panel(p + 1, step)
                            : step + count < steps ? panel(begin, step + count)
                                                   : panel(end, 0);
        const DenseTiles b = kind().panel_tiles(p, step, count);
        for (int64_t r = 0; r < rows; r += kPairRows) {
          const int64_t row = first + pass + r, live = least(rows - r, kPairRows);
          alignas(64) float sums[kBlockFloats];
          const bool last = step + count == steps;
          const BlockSums kept{spilled +
                               ((p - begin) * (pass_rows() / kPairRows) + r / kPairRows) * kBlockFloats};
          const BlockSums* from = step ? &kept : nullptr;
          const BlockSums to = last ? BlockSums{sums} : kept;
          const PanelAhead between{ahead, lines};
          const auto multiply = [&](const auto& a) KP_LAMBDA_INLINE {
            const int rows = static_cast<int>(live);
            if (live > kTileRows)
              block_product<2, 2, Product>({16, 16, rows - 16}, a, b, count, from, to, between);
            else
              block_product<1, 2, Product>({rows}, a, b, count, from, to, between);
          };
          const bool in_place = row < kind().rows_in_place;
          if constexpr (requires { kind().tiles_in_place(row, step); })
            if (in_place) multiply(kind().tiles_in_place(row, step));
          if (!in_place) multiply(packed_tiles(x_tiles, row - most(first, kind().rows_in_place), step));
          if (last) kind().finish(sums, row, live, p);
        }
      }
    }
  }

  // Where vectors multiply, tiles of the weights come from L2 for every pass; decoding them costs more.
  static constexpr int64_t pass_rows() {
    return !kHasDotProducts ? kPassRows : Kind::kDecodes ? kDecodedRows : kDotRows;
  }
  // Of a panel whose sums wait.
  static constexpr int64_t spilled_floats() { return pass_rows() / kPairRows * kBlockFloats; }
  static constexpr int64_t run_bytes() { return 4 * kSpillPanels * spilled_floats(); }

  bool spills(int64_t rows) const { return (Kind::kDecodes || rows > kWholeRows) && steps > kSliceSteps; }

  void multiply_panels(const char* x_tiles, int64_t first, int64_t rows, int64_t begin, int64_t end,
                       float* spilled) const {
    kind().mark_way(rows <= kTileRows, spills(rows));
    if (rows <= kTileRows) return kind().multiply_few(x_tiles, first, rows, begin, end);
    TileScope scope;
    spilled += begin * spilled_floats();  // all runs of this thread have the same place
    for (int64_t near = 0; near < rows; near += kNearRows)
      for (int64_t p = begin; p < end; p += kTilePanels)
        for (int64_t pass = near; pass < least(rows, near + kNearRows); pass += pass_rows())
          multiply_pass(x_tiles, first, pass, least(rows - pass, pass_rows()), p, least(p + kTilePanels, end),
                        !spills(rows), spilled);
  }

  // The same for rows that a caller packed; sums wait in `room`, of run_bytes().
  void multiply_run(const PanelRun& run, void* room) const {
    for (int64_t p = run.begin; p < run.end; p += kSpillPanels)
      multiply_panels(static_cast<const char*>(run.packed), run.first, run.rows, p,
                      least(p + kSpillPanels, run.end), static_cast<float*>(room) - p * spilled_floats());
  }

  void run() const {
    const int64_t M = out.sizes[0], panels = packed.sizes[0];
    const int64_t chunk = least(M, kChunkRows), in_place = kind().rows_in_place;
    const int64_t packed_rows = in_place ? M - in_place : chunk;  // at a time
    const int64_t x_bytes = divide_up(packed_rows, kTileRows) * steps * kTileBytes;
    const int64_t spilled_bytes = spills(chunk) ? panels * spilled_floats() * 4 : 0;
    auto* x_tiles = static_cast<char*>(call_scratch(x_bytes + spilled_bytes));
    auto* spilled = reinterpret_cast<float*>(x_tiles + x_bytes);
    for (int64_t first = 0; first < M; first += chunk) {
      const int64_t rows = least(M - first, chunk);
      const int64_t unpacked = clamp(in_place - first, 0, rows);
      pack_rows(first + unpacked, rows - unpacked, x_tiles, row_tile_bytes(rows));
      parallel_for(panels, panel_grain(rows / 8, steps * kBlockK), [&](int64_t begin, int64_t end) {
        multiply_panels(x_tiles, first, rows, begin, end, spilled);
      });
    }
  }
};

// Rows of bf16, and sums that are rounded to the result's dtype.
template <class Kind>
struct Bf16Tiles : PanelTiles<Kind> {
  using Product = Bf16Product;
  using PanelTiles<Kind>::steps, PanelTiles<Kind>::out;

  const Rows x;
  const View& bias;
  const int64_t row_bytes = x.even_stride() * static_cast<int64_t>(sizeof(Bf16));
  const int64_t rows_in_place = lies_well() ? out.sizes[0] / kPairRows * kPairRows : 0;

  Bf16Tiles(const View& rows, const View& packed_weight, const View& panel_bias, const View& result)
      : PanelTiles<Kind>(packed_weight, result), x{rows}, bias(panel_bias) {}

  // Vectors take even rows of whole steps from where they lie, unless those share too few places of a cache.
  bool lies_well() const {
    return kHasDotProducts && x.x.defined && x.column_stride() == 1 && x.columns() % kBlockK == 0 &&
           row_bytes >= 0 && (row_bytes & -row_bytes) <= kSpreadBytes;
  }

  KP_INLINE auto tiles_in_place(int64_t row, int64_t step) const
    requires kHasDotProducts
  {
    mark(paths::linear_rows_in_place);
    const char* corner = static_cast<const char*>(x.x.data) + row * row_bytes + step * 64;
    return [corner, stride = row_bytes](int tile, int64_t s)
               KP_LAMBDA_INLINE { return TilePlace{corner + tile * kTileRows * stride + s * 64, stride}; };
  }

  // The tail of k is 0. Rows past the end stay as they are: nobody reads their sums.
  void pack_tile_rows(int64_t first, int64_t live, char* to, int64_t step) const {
    const int64_t K = x.columns(), stride = x.column_stride();
    for (int64_t r = 0; r < live; ++r) {
      const Bf16* row = x.row<Bf16>(first + r);
      for (int64_t s = 0; s < steps; ++s) {
        auto* line = reinterpret_cast<Bf16*>(to + s * step + r * 64);
        const int64_t inside = K - s * kBlockK;
        if (stride == 1 && inside >= kBlockK) {
          __builtin_memcpy(line, row + s * kBlockK, 64);
          continue;
        }
        for (int64_t k = 0; k < kBlockK; ++k)
          line[k] = k < inside ? row[(s * kBlockK + k) * stride] : Bf16{0};
      }
    }
  }

  // Rounds the block of sums into rows of out.
  void finish(const float* sums, int64_t first, int64_t rows, int64_t p) const {
    store_rows(out, bias, first, rows, p, [sums](int64_t r, int half) {
      return sums + r / kTileRows * 512 + r % kTileRows * kTileRows + half * kTileFloats;
    });
  }
};

struct TileLinear : Bf16Tiles<TileLinear> {
  explicit TileLinear(const PackedLinearArguments& call)
      : Bf16Tiles(call.x, call.packed_weight, call.bias, call.out) {}

  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::linear_tiles_few : sliced ? paths::linear_tiles_slices : paths::linear_tiles_whole);
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
