// The sums of a causal convolution over one sequence and a chunk of channels:
// - Channels dense (the usual case): tiles of 4 tokens x a block of channels; each row is loaded once and serves w
//   outputs.
// - A single token, or a few drafts, on a state with dense channels: the same sums, without a copy of the state.
// - Anything else: one channel after the other, vectors along its tokens, over a float copy of the row.
// All add bias, then the taps from the oldest to the newest, so that layouts agree bit for bit. What is called once
// for a unit is a function of its own: inlined into one another they cost the compiler half as much again.
#pragma once

#include "convolution/conv_state.h"
#include "simd/pairs.h"
#include "simd/vec_math.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

// Tokens: 7 rows in and 4 out.
constexpr int kTile = 4;
// Channels of a block: a whole cache line, which is then touched once. Rows are often a multiple of 4 KiB
// apart, so all lines of a tile, and those fetched for the next, want the same few places of a cache.
template <class T>
constexpr bool kWholeLines = kPieces == 1 && sizeof(T) == 2 && (std::is_same_v<T, F16> || kRoundsBf16);
template <class T>
constexpr int kBlockChannels = kWholeLines<T> ? kPair : kLanes;

// Where the packed weight has taps 2 * pair and 2 * pair + 1 of channel c.
template <class T>
KP_INLINE const T* packed_taps(const Scratch<T>& scratch, int W, int64_t c, int pair) {
  const int64_t within = c & (kConvBlock - 1);
  return scratch.packed + ((c - within) * ((W + 1) / 2) + pair * kConvBlock + within) * 2;
}

template <class T>
KP_INLINE void load_taps(const T* packed, F32x16& even, F32x16& odd) {
  load_split(packed, even, odd);
}
template <class T>
KP_INLINE void load_taps(const T* packed, F32x32& even, F32x32& odd) {
  load_split(packed, even.first, odd.first);
  load_split(packed + 2 * kLanes, even.second, odd.second);
}

// A vector of channels of R tokens; rows[r] is w-1 tokens before output r. `lanes` as for load().
template <class T, int W, int R, class... Lanes>
KP_INLINE void convolve_vector(const T* const* rows, int64_t c, const Scratch<T>& scratch, Matrix<T> y,
                               bool silu_activation, Lanes... lanes) {
  using Vector = decltype(load(rows[0], lanes...));
  Vector x[R + W - 1], taps[W + 1], sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R + W - 1; ++r) x[r] = load(rows[r] + c, lanes...);
#pragma GCC unroll 8
  for (int j = 0; j < W; j += 2) load_taps(packed_taps(scratch, W, c, j / 2), taps[j], taps[j + 1]);
  const Vector bias = load(scratch.bias + c, lanes...);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sum[r] = bias;
#pragma GCC unroll 8
    for (int j = 0; j < W; ++j) sum[r] = fma(taps[j], x[r + j], sum[r]);
  }
  if (silu_activation) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = each_half(sum[r], [](F32x16 a) { return silu(a); });
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store(y.at(c, r), sum[r], lanes...);
}

// A block of channels of R tokens.
template <class T, int W, int R>
KP_INLINE void convolve_block(const T* const* rows, int64_t c, const Scratch<T>& scratch, Matrix<T> y,
                              bool silu_activation) {
  if constexpr (kWholeLines<T>)
    convolve_vector<T, W, R>(rows, c, scratch, y, silu_activation, WideInOrder{});
  else
    convolve_vector<T, W, R>(rows, c, scratch, y, silu_activation);
}

// The channels of R tokens past the last whole block: rare, and most of the code if it were in every loop.
template <class T, int W>
KP_NOINLINE void convolve_tail(const T* const* rows, int R, int64_t c, int64_t channels,
                               const Scratch<T>& scratch, Matrix<T> y, bool silu_activation) {
  for (int r = 0; r < R; ++r)
    for (int64_t i = c; i < channels; i += kLanes)
      convolve_vector<T, W, 1>(rows + r, i, scratch, {y.at(0, r), 1, 0}, silu_activation,
                               lanes_left(channels - i));
}

// What the rows after these will need: too far apart for the hardware to see it coming.
template <class T>
struct Ahead {
  Matrix<T> read, written;
  int reads, writes;  // rows
};

// R tokens of all channels. A state, whose channels are dense, is read and written in the same pass: its columns
// become rows 1 to W - 2 + R. Elements move as bits.
template <class T, int W, int R>
KP_NOINLINE void convolve_rows(const T* const* rows, int64_t channels, const Scratch<T>& scratch, Matrix<T> y,
                               Matrix<T> state, const Ahead<T>& ahead, bool silu_activation) {
  const auto move = [&](int64_t c, int64_t nbytes) {
    if (!state.data) return;
#pragma GCC unroll 8
    for (int j = 0; j < W - 2 + R; ++j) __builtin_memcpy(state.at(c, j), rows[j + 1] + c, nbytes);
  };
  int64_t c = 0;
  for (; c + kBlockChannels<T> <= channels; c += kBlockChannels<T>) {
    for (int r = 0; r < ahead.reads; ++r) __builtin_prefetch(ahead.read.at(c, r), 0, 3);
    for (int r = 0; r < ahead.writes; ++r) __builtin_prefetch(ahead.written.at(c, r), 1, 3);
    convolve_block<T, W, R>(rows, c, scratch, y, silu_activation);
    move(c, kBlockChannels<T> * sizeof(T));
  }
  if (c == channels) return;
  convolve_tail<T, W>(rows, R, c, channels, scratch, y, silu_activation);
  move(c, (channels - c) * sizeof(T));
}

// The same for 1 to kTile tokens, a number that is known when it runs.
template <class T, int W>
void convolve_tokens(int64_t tokens, const T* const* rows, int64_t channels, const Scratch<T>& scratch,
                     Matrix<T> y, Matrix<T> state, const Ahead<T>& ahead, bool silu_activation) {
  const auto take = [&](auto count) {
    convolve_rows<T, W, decltype(count)::value>(rows, channels, scratch, y, state, ahead, silu_activation);
  };
  switch (tokens) {
    case 1: return take(std::integral_constant<int, 1>{});
    case 2: return take(std::integral_constant<int, 2>{});
    case 3: return take(std::integral_constant<int, 3>{});
    default: return take(std::integral_constant<int, kTile>{});
  }
}

template <class T, int W>
KP_NOINLINE void dense_channels(Matrix<T> x, Matrix<T> y, int64_t length, int64_t channels,
                                Scratch<T>& scratch, Matrix<T> state, bool silu_activation) {
  const auto row = [&](int64_t t) -> const T* { return t < 0 ? scratch.history[t + W - 1] : x.at(0, t); };
  const auto from = [](Matrix<T> a, int64_t t) { return Matrix<T>{a.at(0, t), 1, a.column_stride}; };
  const T* rows[kTile + W - 1];
  for (int64_t t = 0; t < length; t += kTile) {
    const int tokens = length - t < kTile ? length - t : kTile, next = tokens < kTile ? 0 : kTile;
    for (int r = 0; r < tokens + W - 1; ++r) rows[r] = row(t - (W - 1) + r);
    convolve_tokens<T, W>(tokens, rows, channels, scratch, from(y, t), {},
                          {from(x, t + kTile), from(y, t + kTile), next, next}, silu_activation);
  }
  for (int j = 0; j < W - 1; ++j) rows[j] = row(length - (W - 1) + j);
  if (state.data) write_state(state, W - 1, channels, rows);
}

// Up to kTile tokens on a state whose channels are dense, from its column `history` on: read, used and written to
// the columns from the first on in a single pass. `next` is the state of the request that comes next: slots are in
// no order that the hardware could foresee.
template <class T, int W>
void dense_steps(int64_t length, Matrix<T> x, Matrix<T> y, int64_t channels, const Scratch<T>& scratch,
                 Matrix<T> state, int64_t history, Matrix<T> next, bool silu_activation) {
  const T* rows[kTile + W - 1];
  for (int j = 0; j < W - 1; ++j) rows[j] = state.at(0, history + j);
  for (int r = 0; r < length; ++r) rows[W - 1 + r] = x.at(0, r);
  convolve_tokens<T, W>(length, rows, channels, scratch, y, state, {{}, next, 0, int(W - 2 + length)},
                        silu_activation);
}

// Up to kRow tokens of one channel as floats.
template <class T>
void widen(const T* from, int64_t stride, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = lanes_left(count - i);
    if (stride == 1) {
      store(to + i, load(from + i, lanes), lanes);
    } else {
      T gathered[kLanes] = {};
      for (int n = 0; n < lanes; ++n) gathered[n] = from[(i + n) * stride];
      store(to + i, load(gathered), lanes);
    }
  }
}

template <class T>
KP_NOINLINE void one_channel(const T* x, int64_t stride, T* y, int64_t length, int64_t c, int W,
                             Scratch<T>& scratch, bool silu_activation) {
  float *row = scratch.row, taps[kMostColumns + 1];
  for (int j = 0; j < W; ++j) taps[j] = load_one(packed_taps(scratch, W, c, j / 2) + j % 2);
  for (int j = 0; j < W - 1; ++j) row[j] = load_one(&scratch.history[j][c]);
  for (int64_t t = 0; t < length; t += kRow) {
    const int64_t count = length - t < kRow ? length - t : kRow;
    widen(x + t * stride, stride, count, row + W - 1);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = lanes_left(count - i);
      F32x16 sum = splat(scratch.bias[c]);
      for (int j = 0; j < W; ++j) sum = fma(splat(taps[j]), load(row + i + j, lanes), sum);
      if (silu_activation) sum = silu(sum);
      store(y + t + i, sum, lanes);
    }
    for (int j = 0; j < W - 1; ++j) row[j] = row[count + j];
  }
}

template <class T>
KP_NOINLINE void any_strides(Matrix<T> x, Matrix<T> y, int64_t length, int64_t channels, int W,
                             Scratch<T>& scratch, Matrix<T> state, bool silu_activation) {
  for (int64_t c = 0; c < channels; ++c)
    one_channel(x.at(c, 0), x.column_stride, y.at(c, 0), length, c, W, scratch, silu_activation);
  if (!state.data) return;
  for (int64_t c = 0; c < channels; ++c) {
    for (int j = 0; j < W - 1; ++j) {
      const int64_t t = length - (W - 1) + j;
      *state.at(c, j) = t < 0 ? scratch.history[t + W - 1][c] : *x.at(c, t);
    }
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
