// What both forms of int8_linear (tiles, vectors) share: rows as bytes with their scales, and what becomes of
// exact sums.
#pragma once

#include "kernels/int8_linear.h"
#include "linear/parts.h"
#include "linear/quantize.h"
#include "linear/row_blocks.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kByteBlockWidth = 64;  // k of one block of a panel
constexpr int64_t kBlockBytes = 2048, kHalfBlockBytes = 1024;

// The rows of a call in order: bytes as they are, or floats that are quantized on their way.
struct ByteRows {
  const Int8LinearArguments& call;
  Rows rows{call.x};
  int64_t K = rows.columns();

  // Row m: where it lies, or in `room`, which has place for it.
  KP_INLINE const int8_t* row(int64_t m, int8_t* room, RowScale& scale) const {
    if (call.x.dtype == Dtype::i8) {
      scale = {*at<float>(call.scale, m), call.azp.defined ? *at<int32_t>(call.azp, m) : 0};
      return rows.row<int8_t>(m);
    }
    with_float(call.x.dtype, [&](auto element) {
      scale = quantize_row(rows.row<decltype(element)>(m), K, call.symmetric, room);
    });
    return room;
  }
};

// The scales of the rows of a chunk, by their number in it.
struct ChunkScales {
  RowScale of_row[kChunkRows];
};

// What 32 outputs do to their sums: out = (sum - (azp + shift) sum_k w) scale w_scale + bias. The bracket is
// exact modulo 2^32, and so are its parts.
struct PanelOutputs {
  I32x16 sums[2];
  F32x16 scales[2];
  PanelBias bias;
  int64_t columns;

  KP_INLINE PanelOutputs(const Int8LinearArguments& call, int64_t p)
      : bias(call.bias, p * kPanelColumns, call.out.sizes[1]),
        columns(call.out.sizes[1] - p * kPanelColumns) {
    int32_t row_sums[kPanelColumns] = {};
    float w_scale[kPanelColumns] = {};
    for (int64_t n = 0; n < kPanelColumns && n < columns; ++n) {
      row_sums[n] = *at<int32_t>(call.sums, p * kPanelColumns + n);
      w_scale[n] = *at<float>(call.w_scale, p * kPanelColumns + n);
    }
    for (int half = 0; half < 2; ++half) {
      sums[half] = load_dwords(row_sums + half * kLanes);
      scales[half] = load(w_scale + half * kLanes);
    }
  }

  KP_INLINE F32x16 scaled(int half, I32x16 sum, RowScale row, int32_t shift) const {
    const I32x16 exact = sum - times(sums[half], row.azp + shift);
    return to_float(exact) * scales[half] * splat(row.scale);  // a row's scale may be as large as x
  }

  template <class T>
  KP_INLINE void store(T* out, const int32_t* low, const int32_t* high, RowScale row, int32_t shift) const {
    store_row(out, scaled(0, load_dwords(low), row, shift), scaled(1, load_dwords(high), row, shift), bias,
              columns);
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
