// The state of a causal convolution, which is the w-1 columns before the first token or a wider one: copied to a
// unit's own buffer before its tokens, written after them.
#pragma once

#include <type_traits>

#include "core/path.h"
#include "kernels/causal_conv1d.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// Channels of a unit: 2 KiB pieces of a row stream, weights (8 KiB of 16-bit elements) stay in L1.
constexpr int64_t kChunk = 1024;
constexpr int64_t kRow = 512;    // tokens of a float row buffer
constexpr int kMostColumns = 3;  // of history: width 4

KP_PATH(spec_conv_columns);
KP_PATH(spec_conv_elements);

// A matrix of elements: channels by tokens, or channels by state columns.
template <class T>
struct Matrix {
  T* data;
  int64_t channel_stride, column_stride;
  T* at(int64_t c, int64_t t) const { return data + c * channel_stride + t * column_stride; }
};

// What a unit keeps for itself.
template <class T>
struct Scratch {
  const T* packed;  // the weight of its channels: [block][pair][kConvBlock][2]
  alignas(64) float bias[kChunk];
  alignas(64) T history[kMostColumns][kChunk];
  alignas(64) float row[kMostColumns + kRow + kLanes];
};

// Calls f with the number of taps, 2 to 4, as a constant.
template <class F>
KP_INLINE void with_width(int width, F f) {
  switch (width) {
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    default: return f(std::integral_constant<int, 4>{});
  }
}

// The two directions of a copy between the state (either dimension dense, or neither) and rows of channels.
template <class T>
KP_NOINLINE void read_state(Matrix<T> state, int columns, int64_t channels, T (*history)[kChunk]) {
  if (state.channel_stride == 1) {
    for (int j = 0; j < columns; ++j) __builtin_memcpy(history[j], state.at(0, j), channels * sizeof(T));
  } else if (state.column_stride == 1 && state.channel_stride == columns) {
    with_width(columns + 1, [&](auto width) {
      constexpr int kColumns = decltype(width)::value - 1;
      for (int64_t c = 0; c < channels; ++c)
        for (int j = 0; j < kColumns; ++j) history[j][c] = state.data[c * kColumns + j];
    });
  } else {
    for (int j = 0; j < columns; ++j)
      for (int64_t c = 0; c < channels; ++c) history[j][c] = *state.at(c, j);
  }
}

template <class T>
KP_NOINLINE void write_state(Matrix<T> state, int columns, int64_t channels, const T* const* rows) {
  if (state.channel_stride == 1) {
    for (int j = 0; j < columns; ++j) __builtin_memcpy(state.at(0, j), rows[j], channels * sizeof(T));
  } else if (state.column_stride == 1 && state.channel_stride == columns) {
    with_width(columns + 1, [&](auto width) {
      constexpr int kColumns = decltype(width)::value - 1;
      for (int64_t c = 0; c < channels; ++c)
        for (int j = 0; j < kColumns; ++j) state.data[c * kColumns + j] = rows[j][c];
    });
  } else {
    for (int j = 0; j < columns; ++j)
      for (int64_t c = 0; c < channels; ++c) *state.at(c, j) = rows[j][c];
  }
}

// The columns in front of the history, which a wider state has: what stands `length` columns further on takes
// their place, behind the state the tokens. The history itself is still the old one.
template <class T>
KP_NOINLINE void shift_front(Matrix<T> state, Matrix<T> x, int64_t front, int64_t columns, int64_t length,
                             int64_t channels, bool warm) {
  for (int64_t j = 0; j < front; ++j)
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t from = j + length;
      *state.at(c, j) = from >= columns ? *x.at(c, from - columns) : warm ? *state.at(c, from) : T{};
    }
}

// After drafts: the history but for its oldest column, then every token, so that whatever is accepted of them
// the next call finds the columns before it.
template <class T>
KP_NOINLINE void write_drafts(Matrix<T> state, Matrix<T> x, int64_t length, int64_t channels, int W,
                              const Scratch<T>& scratch) {
  const bool dense = state.channel_stride == 1 && x.channel_stride == 1;
  mark(dense ? paths::spec_conv_columns : paths::spec_conv_elements);
  for (int64_t column = 0; column < W - 2 + length; ++column) {
    const int64_t t = column - (W - 2), stride = t < 0 ? 1 : x.channel_stride;
    const T* from = t < 0 ? scratch.history[column + 1] : x.at(0, t);
    if (dense)
      __builtin_memcpy(state.at(0, column), from, channels * sizeof(T));
    else
      for (int64_t c = 0; c < channels; ++c) *state.at(c, column) = from[c * stride];
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
