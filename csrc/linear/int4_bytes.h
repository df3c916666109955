// int4_linear of rows that are quantized to int8: the sums of a group are exact, sum q (c - z) = sum q c - z sum q.
//
// | number      | value     | why                                                                             |
// |-------------|-----------|---------------------------------------------------------------------------------|
// | kCodeRows   | 8 / 3 / 1 | sums of two half panels: 16 of 32 registers, 6 of 16 pairs, 2 of 4 fours        |
// | kGroupRows  | 96        | rows that share one pass over the panels: their bytes stay in L2                |
//
// A unit is eight k: four rows of bytes of each half panel. A group of columns is the units that it touches, with
// zeros for the columns of x that lie in others; so a unit that several groups share is read by each.
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "linear/int4_codes.h"
#include "linear/quantize.h"
#include "linear/row_blocks.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kCodeRows = kVectorBytes == 64 ? 8 : kRowBlock;
constexpr int64_t kUnitWidth = 8, kUnitStride = 64;  // bytes of half a panel
constexpr int64_t kHalfBlockUnits = 4;

KP_PATH(int4_bytes_few);
KP_PATH(int4_bytes_many);

// The units of one group of columns.
struct GroupUnits {
  int64_t begin, end, first, count;

  KP_INLINE GroupUnits(int64_t group, int64_t group_size, int64_t K)
      : begin(group * group_size),
        end(least(begin + group_size, K)),
        first(begin / kUnitWidth),
        count(divide_up(end, kUnitWidth) - first) {}
};

// A block of rows as bytes: quads of each unit of each group, and what stands beside them.
struct ByteBlock {
  uint32_t* quads;  // [unit of a group][even, odd][rows]
  int32_t* sums;    // [group][rows]
  float* scales;    // [rows]
};

struct Int4Bytes {
  const Int4LinearArguments& call;
  const Rows x{call.x};
  int64_t K = x.columns(), N = call.out.sizes[1];
  int64_t groups = call.scales.sizes[1], size = call.group_size;
  int64_t blocks = call.data.sizes[1];  // of 32 k in a panel
  int64_t units = count_units();

  int64_t count_units() const {
    int64_t all = 0;
    for (int64_t g = 0; g < groups; ++g) all += GroupUnits(g, size, K).count;
    return all;
  }

  KP_INLINE int64_t quad_dwords() const { return units * 2 * kQuadDwords; }
  KP_INLINE int64_t row_dwords() const { return quad_dwords() + groups + 1; }

  // Rows of one block lie kRows apart, whatever their number.
  KP_INLINE ByteBlock block_at(uint32_t* rows, int64_t block, int64_t live) const {
    uint32_t* quads = rows + block * kCodeRows * row_dwords();
    auto* sums = reinterpret_cast<int32_t*>(quads + live * quad_dwords());
    return {quads, sums, reinterpret_cast<float*>(sums + live * groups)};
  }

  // Row m as bytes at `q`; its scale.
  template <class T>
  float quantized(int64_t m, T* dense, int8_t* q) const {
    const T* row = x.row<T>(m);
    const int64_t stride = x.column_stride();
    if (stride != 1) {
      for (int64_t k = 0; k < K; ++k) dense[k] = row[k * stride];
      row = dense;
    }
    return quantize_row(row, K, true, q).scale;
  }

  // One row of a block; its quads and sums are kRows apart.
  template <int kRows>
  void pack_row(const int8_t* q, int r, const ByteBlock& to) const {
    uint32_t* quads = to.quads + r * kQuadDwords;
    for (int64_t g = 0; g < groups; ++g) {
      const GroupUnits group(g, size, K);
      int32_t sum = 0;
      for (int64_t unit = group.first; unit < group.first + group.count; ++unit) {
        int8_t apart[2][4] = {};
        for (int64_t i = 0; i < kUnitWidth; ++i) {
          const int64_t k = unit * kUnitWidth + i;
          if (k < group.begin || k >= group.end) continue;
          apart[i % 2][i / 2] = q[k];
          sum += q[k];
        }
        for (int odd = 0; odd < 2; ++odd, quads += kRows * kQuadDwords) store_quad(apart[odd], quads);
      }
      to.sums[g * kRows + r] = sum;
    }
  }

  // Rows behind the last one are zeros.
  template <int kRows>
  void pack_block(int64_t first, int64_t live, const ByteBlock& to) const {
    auto* q = static_cast<int8_t*>(thread_scratch(5 * K + 64));
    void* dense = q + round_up(K, 64);
    for (int r = 0; r < kRows; ++r) {
      to.scales[r] = 0;
      if (r >= live) __builtin_memset(q, 0, K);
      if (r < live)
        with_float(call.x.dtype, [&](auto element) {
          to.scales[r] = quantized(first + r, static_cast<decltype(element)*>(dense), q);
        });
      pack_row<kRows>(q, r, to);
    }
  }

  void pack_rows(int64_t first, int64_t rows, uint32_t* to) const {
    parallel_for(divide_up(rows, kCodeRows), (1 << 16) / (kCodeRows * K) + 1,
                 [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t live = least(rows - block * kCodeRows, kCodeRows);
        with_row_count<kCodeRows>(live, [&](auto count) {
          constexpr int kRows = decltype(count)::value;
          pack_block<kRows>(first + block * kCodeRows, live, block_at(to, block, kRows));
        });
      }
    });
  }

  // A block of rows against one panel.
  template <int kRows>
  KP_NOINLINE void multiply(const ByteBlock& rows, int64_t first, int64_t live, int64_t p) const {
    const uint8_t* panel = at<uint8_t>(call.data, p);
    Int4Codes codes(call, p);
    const uint32_t* quads = rows.quads;
    F32x16 totals[kRows][2] = {};
    for (int64_t g = 0; g < groups; ++g) {
      const GroupUnits group(g, size, K);
      I32x16 sums[kRows][2] = {};
      for (int64_t unit = group.first; unit < group.first + group.count; ++unit) {
        const uint8_t* from =
            panel + (unit / kHalfBlockUnits * 2 * kHalfBlockUnits + unit % kHalfBlockUnits) * kUnitStride;
        for (int64_t half = 0; half < 2; ++half)
          __builtin_prefetch(from + half * kHalfBlockUnits * kUnitStride + kStreamAhead);
        const CodeQuads low = load_code_quads(from);
        const CodeQuads high = load_code_quads(from + kHalfBlockUnits * kUnitStride);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r, quads += kQuadDwords) {
          sums[r][0] = add_codes(sums[r][0], quads, low.even);
          sums[r][1] = add_codes(sums[r][1], quads, high.even);
        }
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r, quads += kQuadDwords) {
          sums[r][0] = add_codes(sums[r][0], quads, low.odd);
          sums[r][1] = add_codes(sums[r][1], quads, high.odd);
        }
      }
      codes.move_to(group.begin);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r)
        for (int half = 0; half < 2; ++half) {
          const I32x16 exact = sums[r][half] - times(codes.zero_points(half), rows.sums[g * kRows + r]);
          totals[r][half] = fma(to_float(exact), codes.half(half), totals[r][half]);
        }
    }
    finish<kRows>(totals, rows.scales, first, live, p);
  }

  template <int kRows>
  KP_INLINE void finish(const F32x16 (&totals)[kRows][2], const float* scales, int64_t first, int64_t live,
                        int64_t p) const {
    const PanelBias bias(call.bias, p * kPanelColumns, N);
    with_float(call.out.dtype, [&](auto element) {
      auto* out = at<decltype(element)>(call.out, first, p * kPanelColumns);
      for (int r = 0; r < live; ++r, out += N)
        store_row(out, totals[r][0] * splat(scales[r]), totals[r][1] * splat(scales[r]), bias,
                  N - p * kPanelColumns);
    });
  }

  void multiply_panels(uint32_t* bytes, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    mark(rows <= kCodeRows ? paths::int4_bytes_few : paths::int4_bytes_many);
    for (int64_t group = 0; group < rows; group += kGroupRows)
      for (int64_t p = begin; p < end; ++p)
        for (int64_t r = group; r < least(group + kGroupRows, rows); r += kCodeRows)
          with_row_count<kCodeRows>(rows - r, [&](auto count) {
            constexpr int kRows = decltype(count)::value;
            const ByteBlock block = block_at(bytes, r / kCodeRows, kRows);
            multiply<kRows>(block, first + r, least(rows - r, kCodeRows), p);
          });
  }

  void run() const {
    const int64_t M = call.out.sizes[0], panels = call.data.sizes[0], most = least(M, kChunkRows);
    auto* bytes = static_cast<uint32_t*>(call_scratch(4 * round_up(most, kCodeRows) * row_dwords()));
    for (int64_t first = 0; first < M; first += most) {
      const int64_t rows = least(M - first, most);
      pack_rows(first, rows, bytes);
      parallel_for(panels, panel_grain(rows / 4, blocks * kBlockK),
                   [&](int64_t begin, int64_t end) { multiply_panels(bytes, first, rows, begin, end); });
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
