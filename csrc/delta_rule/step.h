// One step of the gated delta rule on the state of one head. Bound by memory, so the state is read once.
//
// With S the state before the decay (gamma), all of a head's needs come from one read of it:
//   p = S^T k, r = S^T q;  w = (v - gamma p) beta;  o = scale (gamma r + (q . k) w);  S = gamma S + k w^T.
// o never sees the rounding of a bf16 state. The write follows while the state is still in the cache:
// - "kv", rows along V: for up to 128 columns read all K rows, then write them (64 KiB at most, in L2);
// - "vk", rows along K: 16 rows at a time (8 KiB, in L1), p and r as sums across lanes.
// q and k are normalised into small buffers, kBlock of K at a time.
#pragma once

#include "core/path.h"
#include "delta_rule/gates.h"
#include "kernels/gated_delta_rule_update.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

// Of K: 4 KiB for q and k, any usual head in one.
constexpr int64_t kBlock = 512;
// Column vectors at once: two sums each, in registers.
constexpr int kWidest = kVectorBytes == 64 ? 8 : 2;
constexpr int kRows = kVectorBytes == 64 ? 4 : 2;  // "vk" rows at once: two sums each

using Call = GatedDeltaRuleUpdateArguments;

KP_PATH(step_value_major);
KP_PATH(step_key_major);
KP_PATH(step_whole_columns);
KP_PATH(step_tail_columns);

struct Gates {
  float gamma, beta;
};

// Sixteen elements of a dtype known at run time, or the first few: next to the state they are a hundredth of
// the memory, and one loop over the state serves all dtypes.
KP_NOINLINE F32x16 load_some(const View& view, const char* row, int64_t i, int lanes) {
  F32x16 x;
  with_float(view.dtype,
             [&](auto element) { x = load(reinterpret_cast<const decltype(element)*>(row) + i, lanes); });
  return x;
}

KP_NOINLINE void store_some(const View& view, char* row, int64_t i, F32x16 x, int lanes) {
  with_float(view.dtype,
             [&](auto element) { store(reinterpret_cast<decltype(element)*>(row) + i, x, lanes); });
}

KP_INLINE float parameter(const View& vector, int64_t i) {
  return load_some(vector, at(vector, i), 0, 1).p[0][0];
}
KP_INLINE float entry(const View& matrix, int64_t i, int64_t j) {
  return load_some(matrix, at(matrix, i, j), 0, 1).p[0][0];
}

KP_INLINE Gates gates_of(const Call& call, int64_t request, int64_t head) {
  const Softplus softplus{.beta = call.softplus_beta, .threshold = call.softplus_threshold};
  const float x = entry(call.a, request, head) + parameter(call.dt_bias, head);
  const F32x16 g = log_decay(splat(parameter(call.A_log, head)), splat(x), softplus);
  return {exp(g).p[0][0], sigmoid(splat(entry(call.b, request, head))).p[0][0]};
}

// One head's q and k: their factors, their product, and their normalised values a block at a time.
struct Keys {
  const Call& call;
  const char *q, *k;
  int64_t size;
  float q_factor, k_factor, product;  // the scale is part of q
  int64_t filled;
  alignas(64) float qh[kBlock], kh[kBlock];

  explicit Keys(const Call& the_call) : call(the_call) {}

  KP_NOINLINE void start(int64_t request, int64_t head) {
    q = at(call.q, request, head);
    k = at(call.k, request, head);
    size = call.q.sizes[2];
    filled = -1;
    F32x16 qq = zero(), kk = zero();
    for (int64_t i = 0; i < size; i += kLanes) {
      const int lanes = lanes_left(size - i);
      const F32x16 x = load_some(call.q, q, i, lanes), y = load_some(call.k, k, i, lanes);
      qq = fma(x, x, qq);
      kk = fma(y, y, kk);
    }
    q_factor = call.scale * (call.l2norm ? 1 / __builtin_sqrtf(reduce_add(qq) + call.eps) : 1);
    k_factor = call.l2norm ? 1 / __builtin_sqrtf(reduce_add(kk) + call.eps) : 1;
    F32x16 qk = zero();
    for (int64_t from = 0; from < size; from += kBlock) {
      const int64_t count = fill(from);
      for (int64_t i = 0; i < count; i += kLanes) qk = fma(load(qh + i), load(kh + i), qk);
    }
    product = reduce_add(qk);
  }

  // Makes qh and kh hold [from, from + count), zeros up to a whole vector.
  int64_t fill(int64_t from) {
    const int64_t count = size - from < kBlock ? size - from : kBlock;
    if (filled != from) refill(from, count);
    return count;
  }

  KP_NOINLINE void refill(int64_t from, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = lanes_left(count - i);
      store(qh + i, load_some(call.q, q, from + i, lanes) * splat(q_factor));
      store(kh + i, load_some(call.k, k, from + i, lanes) * splat(k_factor));
    }
    filled = from;
  }
};

// One head's work: its state, seen through the strides, and the rest of its operands.
template <class S>
struct Head {
  const S* state;
  S* to;               // where it goes: there, or to another slot of the same strides
  int64_t row_stride;  // between rows: along K in "kv", along V in "vk"
  const char* v;
  char* o;
  int64_t V;
  Gates gates;

  // Where a number of the state is read that goes to another slot: that slot's line comes from memory meanwhile. A
  // store that waited for it held up the whole step.
  KP_INLINE void fetch_target(const S* from) const {
    if (to != state) __builtin_prefetch(to + (from - state), 1);
  }
};

// w and o of sixteen columns from p = S^T k and r = S^T q.
template <class S>
KP_INLINE F32x16 finish(const Head<S>& head, const Keys& keys, int64_t column, int lanes, F32x16 p,
                        F32x16 r) {
  const F32x16 gamma = splat(head.gates.gamma);
  const F32x16 w = (load_some(keys.call.v, head.v, column, lanes) - gamma * p) * splat(head.gates.beta);
  store_some(keys.call.o, head.o, column, fma(splat(keys.product), w, gamma * r), lanes);
  return w;
}

// "kv": N vectors of columns; `lanes` of the last (whole unless N is 1).
template <class S, int N, bool kWhole>
void step_columns(const Head<S>& head, Keys& keys, int64_t column, int lanes) {
  F32x16 p[N] = {}, r[N] = {};
  for (int64_t from = 0; from < keys.size; from += kBlock) {
    const int64_t count = keys.fill(from);
    const S* row = head.state + from * head.row_stride + column;
    for (int64_t i = 0; i < count; ++i, row += head.row_stride) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        head.fetch_target(row + n * kLanes);
        const F32x16 s = kWhole ? load(row + n * kLanes) : load(row, lanes);
        p[n] = fma(splat(keys.kh[i]), s, p[n]);
        r[n] = fma(splat(keys.qh[i]), s, r[n]);
      }
    }
  }
  F32x16 w[N];
  for (int n = 0; n < N; ++n) w[n] = finish(head, keys, column + n * kLanes, lanes, p[n], r[n]);
  const F32x16 gamma = splat(head.gates.gamma);
  for (int64_t from = 0; from < keys.size; from += kBlock) {
    const int64_t count = keys.fill(from);
    const int64_t first = from * head.row_stride + column;
    const S* row = head.state + first;
    S* to_row = head.to + first;
    for (int64_t i = 0; i < count; ++i, row += head.row_stride, to_row += head.row_stride) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const S* old = row + n * kLanes;
        const F32x16 s = fma(splat(keys.kh[i]), w[n], gamma * (kWhole ? load(old) : load(old, lanes)));
        S* to = to_row + n * kLanes;
        if constexpr (kWhole)
          store(to, s);
        else
          store(to, s, lanes);
      }
    }
  }
}

template <class S>
void step_kv(const Head<S>& head, Keys& keys) {
  int64_t column = 0;
  const auto left = [&] { return head.V - column; };
  if (head.V >= kLanes) mark(paths::step_whole_columns);
  if (head.V % kLanes) mark(paths::step_tail_columns);
  for (; left() >= kWidest * kLanes; column += kWidest * kLanes)
    step_columns<S, kWidest, true>(head, keys, column, kLanes);
  if constexpr (kWidest > 4)
    for (; left() >= 4 * kLanes; column += 4 * kLanes) step_columns<S, 4, true>(head, keys, column, kLanes);
  for (; left() >= kLanes; column += kLanes) step_columns<S, 1, true>(head, keys, column, kLanes);
  if (left() > 0) step_columns<S, 1, false>(head, keys, column, static_cast<int>(left()));
}

// "vk": the sums over one block of K of R rows, added to p and r.
template <class S, int R>
KP_INLINE void sum_rows(const Head<S>& head, const S* rows, const Keys& keys, int64_t count, float* p,
                        float* r) {
  const int64_t stride = head.row_stride;
  F32x16 along_k[R] = {}, along_q[R] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F32x16 kh = load(keys.kh + i), qh = load(keys.qh + i);
#pragma GCC unroll 8
    for (int n = 0; n < R; ++n) {
      head.fetch_target(rows + n * stride + i);
      const F32x16 s = load(rows + n * stride + i);
      along_k[n] = fma(kh, s, along_k[n]);
      along_q[n] = fma(qh, s, along_q[n]);
    }
  }
  if (i < count) {
    for (int n = 0; n < R; ++n) {
      const F32x16 s = load(rows + n * stride + i, static_cast<int>(count - i));
      along_k[n] = fma(load(keys.kh + i), s, along_k[n]);
      along_q[n] = fma(load(keys.qh + i), s, along_q[n]);
    }
  }
  for (int n = 0; n < R; ++n) {
    p[n] += reduce_add(along_k[n]);
    r[n] += reduce_add(along_q[n]);
  }
}

template <class S>
KP_INLINE void update_row(const S* row, S* to, const Keys& keys, int64_t count, F32x16 gamma, F32x16 w) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, fma(load(keys.kh + i), w, gamma * load(row + i)));
  if (i == count) return;
  const int lanes = static_cast<int>(count - i);
  store(to + i, fma(load(keys.kh + i), w, gamma * load(row + i, lanes)), lanes);
}

template <class S>
void step_vk(const Head<S>& head, Keys& keys) {
  for (int64_t v = 0; v < head.V; v += kLanes) {
    const int rows = lanes_left(head.V - v);
    alignas(64) float p[kLanes] = {}, r[kLanes] = {}, w[kLanes];
    for (int64_t from = 0; from < keys.size; from += kBlock) {
      const int64_t count = keys.fill(from);
      const S* first = head.state + v * head.row_stride + from;
      int n = 0;
      for (; n + kRows <= rows; n += kRows)
        sum_rows<S, kRows>(head, first + n * head.row_stride, keys, count, p + n, r + n);
      for (; n < rows; ++n) sum_rows<S, 1>(head, first + n * head.row_stride, keys, count, p + n, r + n);
    }
    store(w, finish(head, keys, v, rows, load(p), load(r)));
    for (int64_t from = 0; from < keys.size; from += kBlock) {
      const int64_t count = keys.fill(from);
      const int64_t first = v * head.row_stride + from;
      for (int n = 0; n < rows; ++n)
        update_row<S>(head.state + first + n * head.row_stride, head.to + first + n * head.row_stride, keys,
                      count, splat(head.gates.gamma), splat(w[n]));
    }
  }
}

template <class S>
void step(const Head<S>& head, Keys& keys) {
  mark(keys.call.vk ? paths::step_value_major : paths::step_key_major);
  if (keys.call.vk)
    step_vk(head, keys);
  else
    step_kv(head, keys);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
