// The gated delta rule token by token on vectors, everything in fp32: for fp32 and fp16, and for tiers
// without tiles.
//
// Value columns are independent of each other, so a block of up to 64 of them runs through a whole sequence
// with its part of the state in the L1 cache. One pass over it serves a token completely: with p = S^T k
// known from the pass before,
//   w = beta (v - exp(g) p);  then for each row  s = exp(g) s + k w;  o += q s;  p' += k' s  (k' the next).
// Rows of q and k are taken as they are; 1 / |q| and the scale multiply o, 1 / |k| multiplies p and w.
// That is four multiply-adds for each load and store of the state, close to what the multipliers can do.
#pragma once

#include "delta_rule/chunk_call.h"

namespace kernelpair::KP_TIER {
namespace {

// Vectors of 16 columns that one pass carries: their o, p and w take 3 registers each (of 32; of 16 halves
// below AVX512).
constexpr int kMaxColumns = kVectorBytes == 64 ? 4 : 1;

struct TokenScratch {
  float* state;         // [K][16 x vectors]
  float *q, *k, *next;  // [K]
};

int64_t allocate(TokenScratch& s, int64_t K, char* block) {
  BumpAllocator allocator{block};
  s.state = allocator.take<float>(round_up(K, kLanes) * kLanes * kMaxColumns);
  s.q = allocator.take<float>(round_up(K, kLanes));
  s.k = allocator.take<float>(round_up(K, kLanes));
  s.next = allocator.take<float>(round_up(K, kLanes));
  return allocator.used;
}

int64_t token_scratch_bytes(const Call& call) {
  TokenScratch scratch;
  return allocate(scratch, call.q.sizes[2], nullptr);
}

// One row of q or k as floats. Returns what it is to be multiplied with, 1 / its norm or 1: a factor of all
// that comes of the row, so that nothing waits for the root.
template <class T>
KP_INLINE float load_row(const Call& call, const View& x, int64_t token, int64_t head, float* to) {
  const T* from = at<T>(x, token, head);
  const int64_t K = x.sizes[2];
  F32x16 sum = zero();
  for (int64_t d = 0; d < K; d += kLanes) {
    const F32x16 row = load_some(from + d, lanes_left(K - d));
    sum = fma(row, row, sum);
    store(to + d, row);
  }
  return call.l2norm ? inverse_norm(reduce_add(sum), call.eps) : 1;
}

template <int kColumns>
KP_INLINE void read_state(const TokenScratch& s, int64_t K, F32x16 (&p)[kColumns]) {
  for (int c = 0; c < kColumns; ++c) p[c] = zero();
  for (int64_t d = 0; d < K; ++d)
    for (int c = 0; c < kColumns; ++c)
      p[c] = fma(load(s.state + (d * kColumns + c) * kLanes), splat(s.k[d]), p[c]);
}

// One token: w in, o and the next token's p out.
template <int kColumns>
KP_INLINE void step(const TokenScratch& s, int64_t K, float gamma, const F32x16 (&w)[kColumns],
                    F32x16 (&o)[kColumns], F32x16 (&p)[kColumns]) {
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) o[c] = p[c] = zero();
  const F32x16 decay = splat(gamma);
  for (int64_t d = 0; d < K; ++d) {
    const F32x16 k = splat(s.k[d]), q = splat(s.q[d]), next = splat(s.next[d]);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* at = s.state + (d * kColumns + c) * kLanes;
      const F32x16 updated = fma(k, w[c], load(at) * decay);
      store(at, updated);
      o[c] = fma(q, updated, o[c]);
      p[c] = fma(next, updated, p[c]);
    }
  }
}

template <int kColumns>
void move_state(const Call& call, const Sequence& seq, int64_t head, int64_t column, const TokenScratch& s,
                bool in) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2];
  for (int64_t k0 = 0; k0 < K; k0 += 16)
    for (int c = 0; c < kColumns; ++c) {
      const int64_t v0 = column + c * kLanes;
      F32x16 rows[16] = {};
      float* block = s.state + (k0 * kColumns + c) * kLanes;
      if (in) {
        if (v0 < V && seq.initial_slot >= 0) load_state_block(call, seq.initial_slot, head, k0, v0, rows);
        for (int i = 0; i < 16; ++i) store(block + i * kColumns * kLanes, rows[i]);
      } else if (v0 < V) {
        for (int i = 0; i < 16; ++i) rows[i] = load(block + i * kColumns * kLanes);
        store_state_block(call, seq.final_slot, head, k0, v0, rows);
      }
    }
}

// Tokens lie pages apart, so the hardware does not see the next ones coming. Four ahead are a microsecond,
// memory's latency; and no nearer than the L2, for the state fills most of the L1.
constexpr int64_t kTokensAhead = 4;

KP_INLINE void prefetch_row(const View& x, int64_t token, int64_t head, int64_t first, int64_t count) {
  const int64_t size = element_size(x.dtype);
  const char* from = at(x, token, head) + first * size;
  for (int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(from + i, 0, 2);
}

template <class T, int kColumns>
void run_columns(const Call& call, const Sequence& seq, int64_t head, int64_t column, TokenScratch s) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2], key_head = head / call.heads_per_key;
  move_state<kColumns>(call, seq, head, column, s, true);
  float k_factor = load_row<T>(call, call.k, seq.begin, key_head, s.k);
  F32x16 p[kColumns], w[kColumns], o[kColumns];
  read_state<kColumns>(s, K, p);
  for (int64_t t = seq.begin; t < seq.end; ++t) {
    const float q_factor = call.scale * load_row<T>(call, call.q, t, key_head, s.q);
    const float next_factor = load_row<T>(call, call.k, t + 1 < seq.end ? t + 1 : t, key_head, s.next);
    if (const int64_t ahead = t + kTokensAhead; ahead < seq.end) {
      prefetch_row(call.q, ahead, key_head, 0, K);
      prefetch_row(call.k, ahead, key_head, 0, K);
      prefetch_row(call.v, ahead, head, column, least(V - column, kColumns * kLanes));
    }
    const float gamma = exp(splat(*at<float>(call.g, t, head))).p[0][0], beta = read_beta(call, t, head);
    const T* v = at<T>(call.v, t, head) + column;
    for (int c = 0; c < kColumns; ++c) {
      const int lanes = lanes_left(V - column - c * kLanes);
      const F32x16 values = lanes > 0 ? load_some(v + c * kLanes, lanes) : zero();
      w[c] = (values - p[c] * splat(gamma * k_factor)) * splat(beta * k_factor);
    }
    step<kColumns>(s, K, gamma, w, o, p);
    T* out = at<T>(call.out, t, head) + column;
    for (int c = 0; c < kColumns; ++c) {
      const int lanes = lanes_left(V - column - c * kLanes);
      if (lanes > 0) store_some(out + c * kLanes, o[c] * splat(q_factor), lanes);
    }
    float* k = s.k;
    s.k = s.next;
    s.next = k;
    k_factor = next_factor;
  }
  move_state<kColumns>(call, seq, head, column, s, false);
}

int64_t column_blocks(const Call& call) {
  return round_up(call.v.sizes[2], kLanes * kMaxColumns) / (kLanes * kMaxColumns);
}

template <class T>
void run_tokens_of(const Call& call, const Sequence& seq, int64_t head, int64_t block,
                   const TokenScratch& s) {
  constexpr int kTwo = kMaxColumns < 2 ? kMaxColumns : 2;
  const int64_t column = block * kLanes * kMaxColumns, left = call.v.sizes[2] - column;
  if (left > kLanes * 2)
    run_columns<T, kMaxColumns>(call, seq, head, column, s);
  else if (left > kLanes)
    run_columns<T, kTwo>(call, seq, head, column, s);
  else
    run_columns<T, 1>(call, seq, head, column, s);
}

// One sequence, value head and block of columns.
void run_tokens(const Call& call, const Sequence& seq, int64_t head, int64_t block, char* scratch) {
  TokenScratch s;
  allocate(s, call.q.sizes[2], scratch);
  switch (call.q.dtype) {
    case Dtype::bf16: return run_tokens_of<Bf16>(call, seq, head, block, s);
    case Dtype::f16: return run_tokens_of<F16>(call, seq, head, block, s);
    default: return run_tokens_of<float>(call, seq, head, block, s);
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
