// causal_conv1d: depthwise causal convolution with a shift-register state, for whole sequences, for single
// tokens and for drafts.
//
// One unit of work is one sequence over a chunk of channels, all of its tokens in order, so that nobody else
// reads or writes its part of the state. The w-1 columns before the first token are copied to a small buffer
// first; the state is written last, but for the columns of a wider one, which move up before anything else.
// The state of a unit is in convolution/conv_state.h, the sums in convolution/conv_sums.h.
#include "kernels/causal_conv1d.h"

#include "convolution/conv_sums.h"
#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kLeastChunk = 128;   // smaller ones cost more in weights than they gain in balance
constexpr int64_t kGrain = 16 * 1024;  // elements, about 5 us: what waking a thread costs

KP_PATH(conv_dense_channels);
KP_PATH(conv_any_strides);
KP_PATH(conv_token_tile);
KP_PATH(conv_token_step);
KP_PATH(conv_pad);
KP_PATH(conv_state_read);
KP_PATH(conv_state_fresh);
KP_PATH(conv_state_wide);

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

// The weight and the bias of the channels from `first` on, a multiple of kConvBlock.
template <class T>
KP_NOINLINE void take_weight(const Call& call, int64_t first, int64_t channels, Scratch<T>& scratch) {
  scratch.packed = static_cast<const T*>(call.packed.data) + first * call.packed.sizes[1] * 2;
  float* bias = scratch.bias;
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

template <class T>
KP_NOINLINE void clear(Matrix<T> y, int64_t length, int64_t channels) {
  for (int64_t t = 0; t < length; ++t)
    for (int64_t c = 0; c < channels; ++c) *y.at(c, t) = T{};
}

template <class T>
void run_unit(const Call& call, int64_t b, int64_t first, int64_t channels, Scratch<T>& scratch) {
  const Sequence sequence = call.sequence(b);
  const int64_t length = sequence.end - sequence.start;
  if (length == 0) return;
  const int W = call.width;
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
  if (dense && warm && state.channel_stride == 1 && length <= (drafts ? kTile : 1)) {
    mark(drafts ? paths::spec_conv_columns : paths::conv_token_step);
    return with_width(W, [&](auto width) {
      dense_steps<T, width>(length, x, y, channels, scratch, state, call.history_column(b), next_state(),
                            call.silu);
    });
  }
  if (warm)
    read_state<T>({state.at(0, call.history_column(b)), state.channel_stride, state.column_stride}, W - 1,
                  channels, scratch.history);
  else
    for (int j = 0; j < W - 1; ++j) __builtin_memset(scratch.history[j], 0, channels * sizeof(T));
  const Matrix<T> shifted = drafts ? Matrix<T>{} : state;
  if (dense)
    with_width(W, [&](auto width) {
      dense_channels<T, width>(x, y, length, channels, scratch, shifted, call.silu);
    });
  else
    any_strides(x, y, length, channels, W, scratch, shifted, call.silu);
  if (drafts) write_drafts(state, x, length, channels, W, scratch);
}

// Chunks of channels: as long as each thread gets its share of units.
int64_t channels_of_chunk(int64_t dim, int64_t sequences) {
  int64_t chunk = kChunk;
  while (chunk > kLeastChunk && sequences * divide_up(dim, chunk) < 2 * thread_count()) chunk /= 2;
  return chunk;
}

template <class T>
void run(const Call& call) {
  const int64_t sequences = call.sequences(), dim = call.dim();
  if (sequences == 0 || call.tokens() == 0) return;
  const int64_t chunk = channels_of_chunk(dim, call.requests() ? call.requests() : 1),
                chunks = divide_up(dim, chunk);
  const int64_t elements = element_count(call.x), units = sequences * chunks;
  parallel_for(units, units * kGrain / elements + 1, [&](int64_t begin, int64_t end) {
    Scratch<T> scratch;
    int64_t taken = -1;
    // All sequences of a chunk in turn: they share its weights.
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit / sequences * chunk, channels = dim - first < chunk ? dim - first : chunk;
      if (taken != first) take_weight(call, first, channels, scratch);
      taken = first;
      run_unit(call, unit % sequences, first, channels, scratch);
    }
  });
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
  for (int64_t i = 0; i < packed.sizes[0] * pairs * kConvBlock * 2; ++i) {
    const int64_t half = i % 2, n = i / 2 % kConvBlock, pair = i / (2 * kConvBlock) % pairs,
                  block = i / (2 * kConvBlock) / pairs;
    const int64_t channel = block * kConvBlock + n, j = 2 * pair + half;
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
