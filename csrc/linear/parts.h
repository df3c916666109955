// What both forms of packed_linear (tiles, vectors) share: rows of x of any strides, the bias of a panel, the
// rounding store.
#pragma once

#include "core/integers.h"
#include "core/path.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kPanelColumns = 32;  // outputs of a panel of the packed weight
constexpr int64_t kBlockK = 32;        // k of one block of a panel
constexpr int64_t kBlockElements = kPanelColumns * kBlockK;

// Bytes that the stream of weights is prefetched ahead when few rows wait for it: from memory into L2, and nearer into
// L1. In one step of 8 KiB into L1 one row took 1.06 to 1.19 times as long with weights in memory, and 0.97 to 1.0 of
// the time with weights in L3.
struct Distance {
  int64_t far, near;
};
constexpr Distance kStreamDistance{12 << 10, 2 << 10};

KP_INLINE void prefetch_stream(const void* line, Distance ahead = kStreamDistance) {
  if (ahead.far) __builtin_prefetch(static_cast<const char*>(line) + ahead.far, 0, 2);
  __builtin_prefetch(static_cast<const char*>(line) + ahead.near, 0, 3);
}

// The rows of a tensor [..., K] in order, whatever the strides of its outer dimensions.
struct Rows {
  const View& x;

  KP_INLINE int64_t columns() const { return x.sizes[x.dim - 1]; }
  KP_INLINE int64_t column_stride() const { return x.strides[x.dim - 1]; }

  // Elements from each row to the next; -1 where they are not equally far apart.
  int64_t even_stride() const {
    int64_t stride = 0, next = -1;  // of the rows so far, and where the one behind them would lie
    for (int d = x.dim - 2; d >= 0; --d) {
      if (x.sizes[d] == 1) continue;
      if (next < 0) stride = x.strides[d], next = stride;
      if (x.strides[d] != next) return -1;
      next *= x.sizes[d];
    }
    return stride;
  }

  template <class T>
  KP_INLINE const T* row(int64_t m) const {
    int64_t offset = 0;
    for (int d = x.dim - 2; d >= 0; --d) {
      offset += m % x.sizes[d] * x.strides[d];
      m /= x.sizes[d];
    }
    return static_cast<const T*>(x.data) + offset;
  }
};

// Elements k .. k + lanes of a row, columns `stride` apart; nothing past them is read.
template <class T>
KP_INLINE F32x16 load_columns(const T* row, int64_t stride, int64_t k, int lanes) {
  if (stride == 1) return load(row + k, lanes);
  T gathered[kLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) gathered[lane] = row[(k + lane) * stride];
  return load(gathered);
}

// The bias of the 32 columns from `first_n`, in fp32; 0 without a bias and past its end.
struct PanelBias {
  F32x16 half[2];

  KP_INLINE PanelBias(const View& bias, int64_t first_n, int64_t N) {
    float values[kPanelColumns] = {};
    for (int64_t n = 0; bias.defined && n < kPanelColumns && first_n + n < N; ++n)
      values[n] = load_one(bias.dtype, at(bias, first_n + n));
    half[0] = load(values);
    half[1] = load(values + kLanes);
  }
};

// One row of a panel: bias added in fp32, rounded once; `columns` of the 32 exist.
template <class T>
KP_INLINE void store_row(T* out, F32x16 low, F32x16 high, const PanelBias& bias, int64_t columns) {
  low = low + bias.half[0];
  high = high + bias.half[1];
  if (columns >= kPanelColumns) {
    store(out, low);
    store(out + kLanes, high);
    return;
  }
  store(out, low, lanes_left(columns));
  if (columns > kLanes) store(out + kLanes, high, lanes_left(columns - kLanes));
}

// The rows of `out`, contiguous, from `first` on, in the columns of panel p: the two halves of row r begin at
// sums_of(r, 0) and sums_of(r, 1).
template <class Sums>
void store_rows(const View& out, const View& bias, int64_t first, int64_t rows, int64_t p,
                const Sums& sums_of) {
  const int64_t N = out.sizes[1], column = p * kPanelColumns;
  const PanelBias panel_bias(bias, column, N);
  with_float(out.dtype, [&](auto element) {
    auto* to = static_cast<decltype(element)*>(out.data) + first * N + column;
    for (int64_t r = 0; r < rows; ++r, to += N)
      store_row(to, load(sums_of(r, 0)), load(sums_of(r, 1)), panel_bias, N - column);
  });
}

// Panels a thread takes at least: 60 us of work at 40 multiply-adds a ns, what waking a thread costs; a panel
// costs at least the reading of its weights, as much as eight rows of products.
KP_INLINE int64_t panel_grain(int64_t rows, int64_t K) {
  const int64_t work = kPanelColumns * K * (rows + 8);
  return (int64_t{1} << 22) / work + 1;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
