// int4_linear in int8 of few rows: one block of them against codes as they are, which pass once, from memory to
// registers. sum q (c - z) = sum q c - z sum q.
//
// | number      | value     | why                                                                             |
// |-------------|-----------|---------------------------------------------------------------------------------|
// | kCodeRows   | 8 / 3 / 1 | sums of two half panels: 16 of 32 registers, 6 of 16 pairs, 2 of 4 fours        |
#pragma once

#include "core/parallel.h"
#include "core/scratch.h"
#include "linear/int4_rows.h"
#include "linear/row_blocks.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kCodeRows = kVectorBytes == 64 ? 8 : kBothHalvesRows;

KP_PATH(int4_bytes_few);

// The rows as bytes: quads of each unit of each group, and what stands beside them.
struct ByteBlock {
  uint32_t* quads;  // [unit of a group][even, odd][rows]
  int32_t* sums;    // [group][rows]
  float scales[kCodeRows];
};

struct Int4Few : Int4Rows {
  const Distance stream = byte_distance(element_count(call.data));

  KP_INLINE int64_t quad_dwords() const { return units * 2 * kQuadDwords; }

  // One row of a block; its quads and sums are kRows apart.
  template <int kRows>
  void pack_row(const int8_t* q, int r, const ByteBlock& to) const {
    uint32_t* quads = to.quads + r * kQuadDwords;
    each_quad(q, [&](const int8_t* quad) KP_LAMBDA_INLINE {
      store_quad(quad, quads);
      quads += kRows * kQuadDwords;
    });
    for (int64_t g = 0; g < groups; ++g) {
      const GroupUnits group(g, size, K);
      int32_t sum = 0;
      for (int64_t k = group.begin; k < group.end; ++k) sum += q[k];
      to.sums[g * kRows + r] = sum;
    }
  }

  // Rows behind the last one stay as they are: nobody sees their sums.
  template <int kRows>
  void pack(int64_t rows, ByteBlock& to) const {
    for (int r = 0; r < rows; ++r) pack_row<kRows>(quantized(r, to.scales[r]), r, to);
  }

  // All rows against one panel.
  template <int kRows>
  KP_NOINLINE void multiply(const ByteBlock& rows, int64_t live, int64_t p) const {
    const uint8_t* panel = at<uint8_t>(call.data, p);
    Int4Codes codes(call, p);
    const uint32_t* quads = rows.quads;
    F32x16 totals[kRows][2] = {};
    for (int64_t g = 0; g < groups; ++g) {
      const GroupUnits group(g, size, K);
      I32x16 sums[kRows][2] = {};
      for (int64_t unit = group.first; unit < group.first + group.count; ++unit) {
        const uint8_t* from = unit_codes(panel, unit);
        for (int64_t half = 0; half < 2; ++half)
          prefetch_stream(from + half * kHalfBlockUnits * kUnitStride, stream);
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
    const PanelBias bias(call.bias, p * kPanelColumns, N);
    with_float(call.out.dtype, [&](auto element) {
      auto* out = at<decltype(element)>(call.out, 0, p * kPanelColumns);
      for (int64_t r = 0; r < live; ++r, out += N)
        store_scaled(out, totals[r][0], totals[r][1], rows.scales[r], bias, p);
    });
  }

  void run(int64_t rows) const {
    with_row_count<kCodeRows>(rows, [&](auto count) {
      constexpr int kRows = decltype(count)::value;
      auto* quads = static_cast<uint32_t*>(call_scratch(4 * kRows * (quad_dwords() + groups)));
      ByteBlock block{quads, reinterpret_cast<int32_t*>(quads + kRows * quad_dwords()), {}};
      pack<kRows>(rows, block);
      parallel_for(call.data.sizes[0], panel_grain(rows / 4, blocks * kBlockK),
                   [&](int64_t begin, int64_t end) {
        mark(paths::int4_bytes_few);
        for (int64_t p = begin; p < end; ++p) multiply<kRows>(block, rows, p);
      });
    });
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
