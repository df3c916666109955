// int4_linear of rows that are quantized to int8: the sums of a group are exact. Few rows take the codes as they are
// (int4_bytes.h), many the bytes of a slice (int4_slices.h).
//
// A unit is eight k: four rows of bytes of each half panel. A group of columns is the units that it touches, with
// zeros for the columns of x that lie in others; so a unit that several groups share is read by each.
#pragma once

#include "linear/int4_codes.h"
#include "linear/quantize.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kUnitWidth = 8, kUnitStride = 64;  // bytes of half a panel
constexpr int64_t kHalfBlockUnits = 4;

// The units of one group of columns.
struct GroupUnits {
  int64_t begin, end, first, count;

  KP_INLINE GroupUnits(int64_t group, int64_t group_size, int64_t K)
      : begin(group * group_size),
        end(least(begin + group_size, K)),
        first(begin / kUnitWidth),
        count(divide_up(end, kUnitWidth) - first) {}
};

// The bytes of one unit of a panel: of its first half, the second one lies kHalfBlockUnits behind.
KP_INLINE const uint8_t* unit_codes(const uint8_t* panel, int64_t unit) {
  return panel + (unit / kHalfBlockUnits * 2 * kHalfBlockUnits + unit % kHalfBlockUnits) * kUnitStride;
}

struct Int4Rows {
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

  // Row m as bytes in memory of this thread, and its scale.
  const int8_t* quantized(int64_t m, float& scale) const {
    auto* q = static_cast<int8_t*>(thread_scratch(5 * K + 64));
    void* dense = q + round_up(K, 64);
    with_float(call.x.dtype,
               [&](auto element) { scale = quantized(m, static_cast<decltype(element)*>(dense), q); });
    return q;
  }

  // The bytes of one unit of a group as two quads: of its even columns, and of its odd ones.
  KP_INLINE void split_unit(const int8_t* q, const GroupUnits& group, int64_t unit,
                            int8_t (&quads)[8]) const {
    const int64_t from = unit * kUnitWidth;
    if (from >= group.begin && from + kUnitWidth <= group.end) return split_even_odd(q + from, quads);
    int8_t inside[kUnitWidth] = {};
    for (int64_t i = 0; i < kUnitWidth; ++i)
      if (from + i >= group.begin && from + i < group.end) inside[i] = q[from + i];
    split_even_odd(inside, quads);
  }

  // The quads of a row, two of each unit of each group.
  template <class Body>
  KP_INLINE void each_quad(const int8_t* q, const Body& body) const {
    for (int64_t g = 0; g < groups; ++g) {
      const GroupUnits group(g, size, K);
      for (int64_t unit = group.first; unit < group.first + group.count; ++unit) {
        int8_t quads[kUnitWidth];
        split_unit(q, group, unit, quads);
        for (int odd = 0; odd < 2; ++odd) body(quads + 4 * odd);
      }
    }
  }

  // One row of sums of groups under the scale of that row of x.
  template <class T>
  KP_INLINE void store_scaled(T* out, F32x16 low, F32x16 high, float scale, const PanelBias& bias,
                              int64_t p) const {
    store_row(out, low * splat(scale), high * splat(scale), bias, N - p * kPanelColumns);
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
