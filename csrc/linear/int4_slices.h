// int4_linear in int8 of many rows: a slice of the codes becomes bytes c - z, once for a group of rows, and meets them
// in the loop of int8_linear. The sums of a group begin with what rows of q + 128 bring too much.
//
// | number       | value    | why                                                                               |
// |--------------|----------|-----------------------------------------------------------------------------------|
// | kSliceUnits  | 256 / 96 | VNNI: 2048 k of a row block (12 KiB) stay in L1, and of two panels in L2          |
// |              |          | (128 KiB); otherwise 768 k of a panel (24 KiB) stay in L1                         |
// | kSharingRows | 256      | rows that share one decoding of a slice, 0.97 of the time of 96: 2048 k of them   |
// |              |          | (512 KiB) stay in L2                                                              |
// | kChunkRows   | 1024     | bounds the copy of x at 1 KiB of memory for each k (2 without VNNI)               |
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "linear/int4_rows.h"
#include "linear/quad_products.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kSliceUnits = kHasVnni ? 256 : 96, kSharingRows = 256;
constexpr int64_t kUnitQuads = 2, kBytesStride = 2 * kUnitQuads * 64;  // of a panel: two halves of each quad
constexpr int64_t kSliceStride = kSliceUnits * kBytesStride;
constexpr int64_t kGroupSums = kSharingRows * kPanelColumns;

KP_PATH(int4_slices);

// Units of one group, all of them or a part.
struct UnitRun {
  int64_t group, first, count;
  bool begins, ends;
};

struct UnitSlice {
  int64_t before = 0, units = 0;  // in x: up to here, and here
  int count = 0;
  UnitRun runs[kSliceUnits];
};

// What a thread keeps of a slice and of the rows that it meets. Sums are those of a group that did not end.
struct SliceMemory {
  int8_t* bytes;    // [panels][units][quads][2 halves][16 outputs][4]
  int32_t* begins;  // [panels][runs][32]
  float* totals;    // [panels][rows][32]
  int32_t* sums;    // the same

  static SliceMemory take(BumpAllocator& memory) {
    return {memory.take<int8_t>(kBytePanels * kSliceStride),
            memory.take<int32_t>(kBytePanels * kSliceUnits * kPanelColumns),
            memory.take<float>(kBytePanels * kGroupSums), memory.take<int32_t>(kBytePanels * kGroupSums)};
  }
  static SliceMemory of_thread() {
    BumpAllocator size{nullptr};
    take(size);
    BumpAllocator memory{static_cast<char*>(thread_scratch(size.used))};
    return take(memory);
  }
};

// The rows of a chunk: quads, one row after the other, and scales.
struct QuadRows {
  int64_t first, rows;
  uint32_t* quads;
  float* scales;
};

struct Int4Many : Int4Rows {
  // A cache line more than the quads, as in int8_vectors.h.
  int64_t row_dwords = units * kUnitQuads * kQuadDwords + 16;

  // The units behind those of the slice, as many as fit; false where none are left.
  bool move_on(UnitSlice& slice) const {
    slice.before += slice.units;
    UnitRun last = slice.count ? slice.runs[slice.count - 1] : UnitRun{-1, 0, 0, true, true};
    slice.units = slice.count = 0;
    for (int64_t room = kSliceUnits; room > 0;) {
      const int64_t g = last.ends ? last.group + 1 : last.group;
      if (g == groups) break;
      const GroupUnits group(g, size, K);
      const int64_t from = last.ends ? group.first : last.first + last.count;
      const int64_t left = group.first + group.count - from, count = least(left, room);
      last = {g, from, count, from == group.first, count == left};
      slice.runs[slice.count++] = last;
      slice.units += count;
      room -= count;
    }
    return slice.count > 0;
  }

  void pack_row(const QuadRows& chunk, int64_t row) const {
    const int8_t* q = quantized(chunk.first + row, chunk.scales[row]);
    uint32_t* quads = chunk.quads + row * row_dwords;
    each_quad(q, [&](const int8_t* quad) KP_LAMBDA_INLINE {
      spread_quad(quad, quads);
      quads += kQuadDwords;
    });
  }

  // Panel p of a slice as bytes, and with what the sums of each run begin.
  KP_NOINLINE void decode(const UnitSlice& slice, int64_t p, int8_t* to, int32_t* begins) const {
    const uint8_t* panel = at<uint8_t>(call.data, p);
    const uint8_t* zeros = at<uint8_t>(call.zeros, p);
    uint32_t shift[kQuadDwords];  // a quad of zeros
    constexpr int8_t nothing[4] = {};
    spread_quad(nothing, shift);
    for (int i = 0; i < slice.count; ++i, begins += kPanelColumns) {
      const UnitRun& run = slice.runs[i];
      I32x16 points[2], too_much[2] = {};
      for (int half = 0; half < 2; ++half)
        points[half] = quads_of_points(zeros + run.group * kPanelColumns + half * kLanes);
      for (int64_t unit = run.first; unit < run.first + run.count; ++unit, to += kBytesStride)
        for (int half = 0; half < 2; ++half) {
          const CodeQuads codes =
              load_code_quads(unit_codes(panel, unit) + half * kHalfBlockUnits * kUnitStride);
          for (int odd = 0; odd < 2; ++odd) {
            const I32x16 bytes = subtract_points(odd ? codes.odd : codes.even, points[half]);
            int8_t* quad = to + (2 * odd + half) * 64;
            store_dwords(quad, bytes);
            if (kQuadShift != 0) too_much[half] = add_products(too_much[half], shift[0], bytes);
          }
        }
      for (int half = 0; half < 2; ++half)
        store_dwords(begins + half * kLanes, splat_int(0) - too_much[half]);
    }
  }

  // A block of rows against a slice of `kPanels` panels from p on: what has ended goes to the totals.
  template <int kRows, int kPanels>
  KP_NOINLINE void multiply(const UnitSlice& slice, const uint32_t* x, int64_t p, int64_t row,
                            const SliceMemory& memory, int64_t ahead_panel, Ahead ahead) const {
    // Copies: the compiler would read them again after each store.
    const int8_t* bytes = memory.bytes;
    float* const totals = memory.totals + row * kPanelColumns;
    int32_t* const kept = memory.sums + row * kPanelColumns;
    const int64_t x_row = row_dwords;
    constexpr int kHalves = kTogether<kRows, 2 * kPanels>;
    const auto multiply_halves = [&](const UnitRun& run, int i, int first) KP_LAMBDA_INLINE {
      const auto place = [&](int r, int half) KP_LAMBDA_INLINE {
        return half / 2 * kGroupSums + r * kPanelColumns + (first + half % 2) * kLanes;
      };
      I32x16 sums[kRows][kHalves];
#pragma GCC unroll 4
      for (int half = 0; half < kHalves; ++half) {
        const int32_t* begins = memory.begins + (half / 2 * kSliceUnits + i) * kPanelColumns;
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          sums[r][half] = load_dwords(begins + (first + half % 2) * kLanes);
          if (!run.begins) sums[r][half] = sums[r][half] + load_dwords(kept + place(r, half));
        }
      }
      add_quads<false>(sums, x, x_row, bytes + first * 64, {128, 64, kSliceStride}, kUnitQuads * run.count,
                       ahead_panel, ahead);
#pragma GCC unroll 4
      for (int half = 0; half < kHalves; ++half) {
        const F32x16 scale = load(at<float>(call.scales, p + half / 2) + run.group * kPanelColumns +
                                  (first + half % 2) * kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          float* total = totals + place(r, half);
          if (run.ends)
            store(total, fma(to_float(sums[r][half]), scale, load(total)));
          else
            store_dwords(kept + place(r, half), sums[r][half]);
        }
      }
    };
    for (int i = 0; i < slice.count; ++i) {
      const UnitRun run = slice.runs[i];
      for (int first = 0; first < 2 * kPanels; first += kHalves) multiply_halves(run, i, first);
      x += kUnitQuads * run.count * kQuadDwords;
      bytes += run.count * kBytesStride;
    }
  }

  // A group of rows against `kPanels` panels, slice by slice; what comes next is prefetched meanwhile.
  template <int kPanels>
  void multiply_group(const QuadRows& chunk, int64_t group, int64_t live, int64_t p,
                      const SliceMemory& memory) const {
    const int64_t panel_bytes = blocks * kBlockK * kPanelColumns / 2;
    const int64_t share = 2 * kUnitStride / kUnitQuads / divide_up(live, kByteRows) + 1;
    for (int i = 0; i < kPanels; ++i)
      __builtin_memset(memory.totals + i * kGroupSums, 0, live * kPanelColumns * sizeof(float));
    for (UnitSlice slice; move_on(slice);) {
      for (int i = 0; i < kPanels; ++i)
        decode(slice, p + i, memory.bytes + i * kSliceStride,
               memory.begins + i * kSliceUnits * kPanelColumns);
      const UnitRun& last = slice.runs[slice.count - 1];
      const bool more = last.group + 1 < groups || !last.ends;
      const uint8_t* then = at<uint8_t>(call.data, more ? p : p + kPanels);
      if (more) then = unit_codes(then, last.first + last.count);
      Ahead ahead{reinterpret_cast<const char*>(then), share};
      for (int64_t r = 0; r < live; r += kByteRows, ahead.at += share * slice.units * kUnitQuads)
        with_row_count<kByteRows>(live - r, [&](auto count) {
          const uint32_t* x =
              chunk.quads + (group + r) * row_dwords + slice.before * kUnitQuads * kQuadDwords;
          multiply<decltype(count)::value, kPanels>(slice, x, p, r, memory, panel_bytes, ahead);
        });
    }
    for (int i = 0; i < kPanels; ++i) finish(chunk, group, live, p + i, memory.totals + i * kGroupSums);
  }

  void finish(const QuadRows& chunk, int64_t group, int64_t live, int64_t p, const float* totals) const {
    const PanelBias bias(call.bias, p * kPanelColumns, N);
    with_float(call.out.dtype, [&](auto element) {
      auto* out = at<decltype(element)>(call.out, chunk.first + group, p * kPanelColumns);
      for (int64_t r = 0; r < live; ++r, out += N, totals += kPanelColumns)
        store_scaled(out, load(totals), load(totals + kLanes), chunk.scales[group + r], bias, p);
    });
  }

  void multiply_panels(const QuadRows& chunk, int64_t begin, int64_t end) const {
    mark(paths::int4_slices);
    const SliceMemory memory = SliceMemory::of_thread();
    for (int64_t group = 0; group < chunk.rows; group += kSharingRows) {
      const int64_t live = least(chunk.rows - group, kSharingRows);
      int64_t p = begin;
      if constexpr (kBytePanels > 1)
        for (; p + kBytePanels <= end; p += kBytePanels)
          multiply_group<kBytePanels>(chunk, group, live, p, memory);
      for (; p < end; ++p) multiply_group<1>(chunk, group, live, p, memory);
    }
  }

  void run() const {
    const int64_t M = call.out.sizes[0], panels = call.data.sizes[0], most = least(M, kChunkRows);
    float scales[kChunkRows];
    auto* quads = static_cast<uint32_t*>(call_scratch(4 * round_up(most, kByteRows) * row_dwords));
    for (int64_t first = 0; first < M; first += most) {
      const QuadRows chunk{first, least(M - first, most), quads, scales};
      parallel_for(chunk.rows, (1 << 16) / K + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) pack_row(chunk, row);
      });
      parallel_for(panels, panel_grain(chunk.rows / 4, blocks * kBlockK),
                   [&](int64_t begin, int64_t end) { multiply_panels(chunk, begin, end); });
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
