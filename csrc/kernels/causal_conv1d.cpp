// causal_conv1d: depthwise causal convolution with a shift-register state, for whole sequences, for single
// tokens and for drafts.
//
// One unit of work is one sequence over a chunk of channels, all of its tokens in order, so that nobody else
// reads or writes its part of the state. The w-1 columns before the first token are copied to a small buffer
// first; the state is written last, but for the columns of a wider one, which move up before anything else.
// - Channels dense (the usual case): tiles of 4 tokens x 16 channels; each row is loaded once and serves w
//   outputs.
// - A single token on a state with dense channels: the same sums, without a copy of the state.
// - Anything else: one channel after the other, vectors along its tokens, over a float copy of the row.
// Both add bias, then the taps from the oldest to the newest, so that layouts agree bit for bit.
#include "kernels/causal_conv1d.h"

#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/pairs.h"
#include "simd/vec_math.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// Channels of a unit: 2 KiB pieces of a row stream, weights (20 KiB) stay in L1.
constexpr int64_t kChunk = 1024;
constexpr int64_t kLeastChunk = 128;  // smaller ones cost more in weights than they gain in balance
// Tokens: 7 rows in and 4 out, which a 12-way L1 holds at any row stride.
constexpr int kTile = 4;
constexpr int64_t kRow = 512;          // tokens of a float row buffer
constexpr int64_t kGrain = 16 * 1024;  // elements, about 5 us: what waking a thread costs
constexpr int64_t kBlock = 32;         // channels of a block of the packed weight
constexpr int kMostColumns = 3;        // of history: width 4

KP_PATH(conv_dense_channels);
KP_PATH(conv_any_strides);
KP_PATH(conv_token_tile);
KP_PATH(conv_token_step);
KP_PATH(conv_pad);
KP_PATH(conv_state_read);
KP_PATH(conv_state_fresh);
KP_PATH(conv_state_wide);
KP_PATH(spec_conv_columns);
KP_PATH(spec_conv_elements);

// Zero tokens [start, end) of every channel, or convolve them.
struct Sequence {
  int64_t start, end;  // tokens
  int64_t row;         // of the batch
  int64_t slot;        // of the state
  bool live;
};

struct Call : CausalConv1dArguments {
  bool varlen() const { return query_start_loc.defined; }
  int channel_dim() const { return x.dim - 2; }
  int64_t dim() const { return x.sizes[x.dim - 2]; }
  int64_t tokens() const { return x.sizes[x.dim - 1]; }
  int64_t requests() const { return varlen() ? query_start_loc.sizes[0] - 1 : x.sizes[0]; }
  // In varlen the tokens before the first and after the last offset are two more sequences, of zeros.
  int64_t sequences() const { return varlen() ? requests() + 2 : requests(); }

  Sequence sequence(int64_t b) const {
    const int64_t count = requests();
    if (b >= count) {
      const bool after = b > count;
      return {after ? index_at(query_start_loc, count) : 0, after ? tokens() : index_at(query_start_loc, 0),
              0, 0, false};
    }
    const int64_t slot = cache_indices.defined ? index_at(cache_indices, b) : b;
    const bool pad = has_pad && cache_indices.defined && slot == pad_slot;
    if (!varlen()) return {0, tokens(), b, slot, !pad};
    return {index_at(query_start_loc, b), index_at(query_start_loc, b + 1), 0, slot, !pad};
  }

  // The first column of a request's history: drafts may have pushed newer columns behind it.
  int64_t history_column(int64_t b) const {
    return num_accepted_tokens.defined ? index_at(num_accepted_tokens, b) - 1 : 0;
  }

  bool initial(int64_t b) const {
    if (always_initial) return true;
    return has_initial_state.defined &&
           *(static_cast<const bool*>(has_initial_state.data) + b * has_initial_state.strides[0]);
  }
};

// A matrix of elements: channels by tokens, or channels by state columns.
template <class T>
struct Matrix {
  T* data;
  int64_t channel_stride, column_stride;
  T* at(int64_t c, int64_t t) const { return data + c * channel_stride + t * column_stride; }
};

template <class T>
Matrix<T> tokens_of(const View& view, int64_t row, int64_t channel, int64_t token) {
  const int c = view.dim - 2;
  const int64_t offset =
      (c ? row * view.strides[0] : 0) + channel * view.strides[c] + token * view.strides[c + 1];
  return {static_cast<T*>(view.data) + offset, view.strides[c], view.strides[c + 1]};
}

// From column `column` on.
template <class T>
Matrix<T> state_of(const Call& call, int64_t slot, int64_t channel, int64_t column) {
  if (!call.conv_states.defined) return {nullptr, 0, 0};
  const int64_t* strides = call.conv_states.strides;
  return {
      static_cast<T*>(call.conv_states.data) + slot * strides[0] + channel * strides[1] + column * strides[2],
      strides[1], strides[2]};
}

// What a unit keeps for itself. taps[w] is the bias.
template <class T>
struct Scratch {
  alignas(64) float taps[kMostColumns + 2][kChunk];
  alignas(64) T history[kMostColumns][kChunk];
  alignas(64) float row[kMostColumns + kRow + kLanes];
};

// packed[block][pair][32][2] to one float vector a tap, and the bias; first is a multiple of 16.
template <class T, int W>
void unpack_taps(const Call& call, int64_t first, int64_t channels, Scratch<T>& scratch) {
  constexpr int kPairs = (W + 1) / 2;
  const T* packed = static_cast<const T*>(call.packed.data);
  for (int64_t c = 0; c < channels; c += kLanes) {
    const int64_t block = (first + c) / kBlock, within = (first + c) % kBlock;
    for (int pair = 0; pair < kPairs; ++pair) {
      F32x16 even, odd;
      load_split(packed + ((block * kPairs + pair) * kBlock + within) * 2, even, odd);
      store(scratch.taps[2 * pair] + c, even);
      if (2 * pair + 1 < W) store(scratch.taps[2 * pair + 1] + c, odd);
    }
  }
  float* bias = scratch.taps[W];
  if (!call.bias.defined) {
    __builtin_memset(bias, 0, channels * sizeof(float));
    return;
  }
  with_float(call.bias.dtype, [&](auto element) {
    using Element = decltype(element);
    const int64_t stride = call.bias.strides[0];
    const auto* from = static_cast<const Element*>(call.bias.data) + first * stride;
    for (int64_t c = 0; c < channels; c += kLanes)
      if (stride == 1)
        store(bias + c, load(from + c, lanes_left(channels - c)));
      else
        for (int64_t i = c; i < channels && i < c + kLanes; ++i) bias[i] = load_one(from + i * stride);
  });
}

// The two directions of a copy between the state (either dimension dense, or neither) and rows of channels.
template <class T, int Columns>
void read_state(Matrix<T> state, int64_t channels, T (*history)[kChunk]) {
  if (state.channel_stride == 1) {
    for (int j = 0; j < Columns; ++j) __builtin_memcpy(history[j], state.at(0, j), channels * sizeof(T));
  } else if (state.column_stride == 1 && state.channel_stride == Columns) {
    for (int64_t c = 0; c < channels; ++c)
      for (int j = 0; j < Columns; ++j) history[j][c] = state.data[c * Columns + j];
  } else {
#pragma GCC unroll 1
    for (int j = 0; j < Columns; ++j)
      for (int64_t c = 0; c < channels; ++c) history[j][c] = *state.at(c, j);
  }
}

template <class T, int Columns>
void write_state(Matrix<T> state, int64_t channels, const T* const* rows) {
  if (state.channel_stride == 1) {
    for (int j = 0; j < Columns; ++j) __builtin_memcpy(state.at(0, j), rows[j], channels * sizeof(T));
  } else if (state.column_stride == 1 && state.channel_stride == Columns) {
    for (int64_t c = 0; c < channels; ++c)
      for (int j = 0; j < Columns; ++j) state.data[c * Columns + j] = rows[j][c];
  } else {
#pragma GCC unroll 1
    for (int j = 0; j < Columns; ++j)
      for (int64_t c = 0; c < channels; ++c) *state.at(c, j) = rows[j][c];
  }
}

// The columns in front of the history, which a wider state has: what stands `length` columns further on takes
// their place, behind the state the tokens. The history itself is still the old one.
template <class T>
void shift_front(Matrix<T> state, Matrix<T> x, int64_t front, int64_t columns, int64_t length,
                 int64_t channels, bool warm) {
  for (int64_t j = 0; j < front; ++j)
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t from = j + length;
      *state.at(c, j) = from >= columns ? *x.at(c, from - columns) : warm ? *state.at(c, from) : T{};
    }
}

// Sixteen channels of R tokens, or the first `lanes` of one; rows[r] is w-1 tokens before output r.
template <class T, int W, int R>
KP_INLINE void convolve_block(const T* const* rows, int64_t c, int lanes, const Scratch<T>& scratch,
                              Matrix<T> y, bool silu_activation) {
  constexpr bool kWhole = R > 1;
  F32x16 x[R + W - 1], taps[W], sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R + W - 1; ++r) x[r] = kWhole ? load(rows[r] + c) : load(rows[r] + c, lanes);
#pragma GCC unroll 8
  for (int j = 0; j < W; ++j) taps[j] = load(scratch.taps[j] + c);
  const F32x16 bias = load(scratch.taps[W] + c);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sum[r] = bias;
#pragma GCC unroll 8
    for (int j = 0; j < W; ++j) sum[r] = fma(taps[j], x[r + j], sum[r]);
  }
  if (silu_activation) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = silu(sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if (kWhole || lanes == kLanes)  // a masked store is slow on some CPUs
      store(y.at(c, r), sum[r]);
    else
      store(y.at(c, r), sum[r], lanes);
  }
}

// R tokens; the channels past the last whole vector are left to a call for each token.
template <class T, int W, int R>
void convolve_tile(const T* const* rows, int64_t row_stride, int64_t channels, const Scratch<T>& scratch,
                   Matrix<T> y, bool silu_activation) {
  int64_t c = 0;
  if constexpr (R > 1) {
    const T* last = rows[R + W - 2];
    // The rows are too far apart for the hardware to see the next ones coming.
    for (; c + kLanes <= channels; c += kLanes) {
#pragma GCC unroll 8
      for (int r = 1; r <= R; ++r) {
        __builtin_prefetch(last + r * row_stride + c, 0, 3);
        __builtin_prefetch(y.at(c, R - 1 + r), 1, 3);
      }
      convolve_block<T, W, R>(rows, c, kLanes, scratch, y, silu_activation);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int64_t i = c; i < channels; i += kLanes)
      convolve_block<T, W, 1>(rows + r, i, lanes_left(channels - i), scratch,
                              {y.at(0, r), y.channel_stride, y.column_stride}, silu_activation);
}

template <class T, int W>
void dense_channels(Matrix<T> x, Matrix<T> y, int64_t length, int64_t channels, Scratch<T>& scratch,
                    Matrix<T> state, bool silu_activation) {
  const auto row = [&](int64_t t) -> const T* { return t < 0 ? scratch.history[t + W - 1] : x.at(0, t); };
  const T* rows[kTile + W - 1];
  int64_t t = 0;
  const auto tiles_of = [&](auto count) {
    constexpr int kTokens = decltype(count)::value;
    for (; t + kTokens <= length; t += kTokens) {
      for (int r = 0; r < kTokens + W - 1; ++r) rows[r] = row(t - (W - 1) + r);
      convolve_tile<T, W, kTokens>(rows, x.column_stride, channels, scratch,
                                   {y.at(0, t), y.channel_stride, y.column_stride}, silu_activation);
    }
  };
  tiles_of(std::integral_constant<int, kTile>{});
  tiles_of(std::integral_constant<int, kTile / 2>{});  // two drafts, or the end of a sequence
  tiles_of(std::integral_constant<int, 1>{});
  for (int j = 0; j < W - 1; ++j) rows[j] = row(length - (W - 1) + j);
  if (state.data) write_state<T, W - 1>(state, channels, rows);
}

// One token on a state whose channels are dense: read, used and moved up one column in a single pass.
// Elements move as bits. `next` is the state of the request that comes next: slots are in no order that the
// hardware could foresee.
template <class T, int W>
void dense_step(const T* x, T* y, int64_t channels, const Scratch<T>& scratch, Matrix<T> state,
                Matrix<T> next, bool silu_activation) {
  const auto step = [&](int64_t c, int lanes, int64_t nbytes) {
    for (int j = 0; j < W - 1; ++j) __builtin_prefetch(next.at(c, j), 1, 3);
    const T* rows[W];
    for (int j = 0; j < W - 1; ++j) rows[j] = state.at(0, j);
    rows[W - 1] = x;
    convolve_block<T, W, 1>(rows, c, lanes, scratch, {y, 1, 0}, silu_activation);
#pragma GCC unroll 8
    for (int j = 0; j < W - 1; ++j) __builtin_memcpy(state.at(c, j), rows[j + 1] + c, nbytes);
  };
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) step(c, kLanes, kLanes * sizeof(T));
  if (c < channels) step(c, lanes_left(channels - c), (channels - c) * sizeof(T));
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
void one_channel(const T* x, int64_t stride, T* y, int64_t length, int64_t c, int W, Scratch<T>& scratch,
                 bool silu_activation) {
  float* row = scratch.row;
  for (int j = 0; j < W - 1; ++j) row[j] = load_one(&scratch.history[j][c]);
  for (int64_t t = 0; t < length; t += kRow) {
    const int64_t count = length - t < kRow ? length - t : kRow;
    widen(x + t * stride, stride, count, row + W - 1);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = lanes_left(count - i);
      F32x16 sum = splat(scratch.taps[W][c]);
      for (int j = 0; j < W; ++j) sum = fma(splat(scratch.taps[j][c]), load(row + i + j, lanes), sum);
      if (silu_activation) sum = silu(sum);
      store(y + t + i, sum, lanes);
    }
    for (int j = 0; j < W - 1; ++j) row[j] = row[count + j];
  }
}

template <class T>
void any_strides(Matrix<T> x, Matrix<T> y, int64_t length, int64_t channels, int W, Scratch<T>& scratch,
                 Matrix<T> state, bool silu_activation) {
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

// After drafts: the history but for its oldest column, then every token, so that whatever is accepted of them
// the next call finds the columns before it.
template <class T, int W>
void write_drafts(Matrix<T> state, Matrix<T> x, int64_t length, int64_t channels, const Scratch<T>& scratch) {
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

template <class T>
void clear(Matrix<T> y, int64_t length, int64_t channels) {
  for (int64_t t = 0; t < length; ++t)
    for (int64_t c = 0; c < channels; ++c) *y.at(c, t) = T{};
}

template <class T, int W>
void run_unit(const Call& call, int64_t b, int64_t first, int64_t channels, Scratch<T>& scratch) {
  const Sequence sequence = call.sequence(b);
  const int64_t length = sequence.end - sequence.start;
  if (length == 0) return;
  const Matrix<T> y = tokens_of<T>(call.y, sequence.row, first, sequence.start);
  if (!sequence.live) return mark(paths::conv_pad), clear(y, length, channels);
  const Matrix<T> x = tokens_of<T>(call.x, sequence.row, first, sequence.start);
  const bool drafts = call.num_accepted_tokens.defined;
  const int64_t columns = call.conv_states.defined ? call.conv_states.sizes[2] : W - 1;
  const int64_t front = drafts ? 0 : columns - (W - 1);
  const Matrix<T> state = state_of<T>(call, sequence.slot, first, front);
  const bool warm = state.data && call.initial(b), dense = x.channel_stride == 1 && y.channel_stride == 1;
  mark(warm ? paths::conv_state_read : paths::conv_state_fresh);
  mark(dense ? paths::conv_dense_channels : paths::conv_any_strides);
  const auto next_state = [&] {
    const Sequence next = b + 1 < call.requests() ? call.sequence(b + 1) : sequence;
    return next.live ? state_of<T>(call, next.slot, first, front) : state;
  };
  if (front > 0)
    mark(paths::conv_state_wide),
        shift_front(state_of<T>(call, sequence.slot, first, 0), x, front, columns, length, channels, warm);
  if (dense && length >= kTile) mark(paths::conv_token_tile);
  if (dense && length == 1 && warm && state.channel_stride == 1 && !drafts)
    return mark(paths::conv_token_step),
           dense_step<T, W>(x.data, y.data, channels, scratch, state, next_state(), call.silu);
  if (warm)
    read_state<T, W - 1>({state.at(0, call.history_column(b)), state.channel_stride, state.column_stride},
                         channels, scratch.history);
  else
    for (int j = 0; j < W - 1; ++j) __builtin_memset(scratch.history[j], 0, channels * sizeof(T));
  const Matrix<T> shifted = drafts ? Matrix<T>{} : state;
  if (dense)
    dense_channels<T, W>(x, y, length, channels, scratch, shifted, call.silu);
  else
    any_strides(x, y, length, channels, W, scratch, shifted, call.silu);
  if (drafts) write_drafts<T, W>(state, x, length, channels, scratch);
}

// Chunks of channels: as long as each thread gets its share of units.
int64_t channels_of_chunk(int64_t dim, int64_t sequences) {
  int64_t chunk = kChunk;
  while (chunk > kLeastChunk && sequences * divide_up(dim, chunk) < 2 * thread_count()) chunk /= 2;
  return chunk;
}

template <class T, int W>
void run(const Call& call) {
  const int64_t sequences = call.sequences(), dim = call.dim();
  if (sequences == 0 || call.tokens() == 0) return;
  const int64_t chunk = channels_of_chunk(dim, call.requests() ? call.requests() : 1),
                chunks = divide_up(dim, chunk);
  const int64_t elements = element_count(call.x), units = sequences * chunks;
  parallel_for(units, units * kGrain / elements + 1, [&](int64_t begin, int64_t end) {
    Scratch<T> scratch;
    int64_t unpacked = -1;
    // All sequences of a chunk in turn: they share its weights.
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit / sequences * chunk, channels = dim - first < chunk ? dim - first : chunk;
      if (unpacked != first) unpack_taps<T, W>(call, first, channels, scratch);
      unpacked = first;
      run_unit<T, W>(call, unit % sequences, first, channels, scratch);
    }
  });
}

template <class T>
void run(const Call& call) {
  switch (call.width) {
    case 2: return run<T, 2>(call);
    case 3: return run<T, 3>(call);
    default: return run<T, 4>(call);
  }
}

}  // namespace

void causal_conv1d(const CausalConv1dArguments& arguments) {
  const Call call{arguments};
  with_float(call.x.dtype, [&](auto element) { run<decltype(element)>(call); });
}

// Elements are moved as bits. weight is [dim, w] with any strides.
namespace {

template <class T>
void move_weight(const CausalConv1dPackArguments& call) {
  const View &weight = call.weight, &packed = call.packed;
  const int64_t dim = weight.sizes[0], width = weight.sizes[1], pairs = packed.sizes[1];
  T* in_blocks = static_cast<T*>(packed.data);
  for (int64_t i = 0; i < packed.sizes[0] * pairs * kBlock * 2; ++i) {
    const int64_t half = i % 2, n = i / 2 % kBlock, pair = i / (2 * kBlock) % pairs,
                  block = i / (2 * kBlock) / pairs;
    const int64_t channel = block * kBlock + n, j = 2 * pair + half;
    const bool inside = channel < dim && j < width;
    T* plain = static_cast<T*>(weight.data) + channel * weight.strides[0] + j * weight.strides[1];
    if (call.pack)
      in_blocks[i] = inside ? *plain : T{};
    else if (inside)
      *plain = in_blocks[i];
  }
}

}  // namespace

void causal_conv1d_pack(const CausalConv1dPackArguments& call) {
  if (element_size(call.weight.dtype) == 2)
    move_weight<uint16_t>(call);
  else
    move_weight<uint32_t>(call);
}

}  // namespace kernelpair::KP_TIER
