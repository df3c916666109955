// The gated delta rule token by token on vectors, everything in fp32: for fp32 and fp16, and for tiers
// without tiles.
//
// Value columns are independent of each other, so a block of up to 64 of them takes its part of the state
// through some tokens while it stays in the L1 cache. One pass over it serves a token completely: with
// p = S^T k known from the pass before,
//   w = beta (v - exp(g) p);  then for each row  s = exp(g) s + k w;  o += q s;  p' += k' s  (k' the next).
// Rows of q and k are taken as they are; 1 / |q| and the scale multiply o, 1 / |k| multiplies p and w.
// That is four multiply-adds for each load and store of the state, close to what the multipliers can do.
//
// All blocks of an item share the rows of their key head, which become floats once for all of them, and the
// gates of their head. The states of the other blocks wait in the L2 cache meanwhile.
#pragma once

#include "core/parallel.h"
#include "delta_rule/chunk_call.h"
#include "simd/each_vector.h"
#include "simd/row_counts.h"

namespace kernelpair::KP_TIER {
namespace {

// Vectors of 16 columns that one pass carries: their o, p and w take 3 registers each of 32, or 6 of 16 below
// AVX512, where w is read from memory.
constexpr int kMaxColumns = kVectorBytes == 64 ? 4 : 2;
constexpr int64_t kBlockColumns = kMaxColumns * kLanes;
// Tokens that a block takes while the others wait. 16 to 128 are equally fast.
constexpr int64_t kTokens = 64;

// Of a key head and its blocks of value columns.
struct TokenScratch {
  float *q, *k;                  // [tokens][K], [tokens + 1][K]: the key behind the last token too
  float *q_factors, *k_factors;  // what comes of these rows is multiplied with
  float *gammas, *betas;         // [tokens] of one value head
  float* p;                      // [blocks][columns]: S^T k of the next token
  float* states;                 // [blocks][K][columns]
};

// A block of columns of one value head.
struct Block {
  int64_t head, column;
  float *state, *p;
};

// One item: some blocks of columns of the value heads of a key head.
struct Share {
  int64_t key_head, begin, end;
};

int64_t blocks_of_head(const Call& call) { return divide_up(call.v.sizes[2], kBlockColumns); }

// Shares of a key head: a few for each thread, so that one that is late keeps none waiting.
int64_t shares_of_key_head(const Call& call) {
  const int64_t items = call.q.sizes[1] * (call.cu_seqlens.sizes[0] - 1);
  const int64_t wanted = items > 0 ? divide_up(4 * thread_count(), items) : 1;
  return least(wanted, call.heads_per_key * blocks_of_head(call));
}

int64_t allocate(TokenScratch& s, const Call& call, int64_t blocks, char* memory) {
  const int64_t K = round_up(call.q.sizes[2], kLanes);
  BumpAllocator allocator{memory};
  s.q = allocator.take<float>(kTokens * K);
  s.k = allocator.take<float>((kTokens + 1) * K);
  s.q_factors = allocator.take<float>(kTokens);
  s.k_factors = allocator.take<float>(kTokens + 1);
  s.gammas = allocator.take<float>(kTokens);
  s.betas = allocator.take<float>(kTokens);
  s.p = allocator.take<float>(blocks * kBlockColumns);
  s.states = allocator.take<float>(blocks * K * kBlockColumns);
  return allocator.used;
}

int64_t token_scratch_bytes(const Call& call, int64_t blocks) {
  TokenScratch scratch;
  return allocate(scratch, call, blocks, nullptr);
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

// The rows of `count` tokens, and of the key behind them, or of the last once more.
template <class T>
KP_NOINLINE void load_rows(const Call& call, const Sequence& seq, int64_t key_head, int64_t token,
                           int64_t count, const TokenScratch& s) {
  const int64_t K = round_up(call.q.sizes[2], kLanes);
  for (int64_t i = 0; i < count; ++i)
    s.q_factors[i] = call.scale * load_row<T>(call, call.q, token + i, key_head, s.q + i * K);
  for (int64_t i = 0; i <= count; ++i) {
    const int64_t t = token + i < seq.end ? token + i : seq.end - 1;
    s.k_factors[i] = load_row<T>(call, call.k, t, key_head, s.k + i * K);
  }
}

KP_NOINLINE void load_gates(const Call& call, int64_t head, int64_t token, int64_t count,
                            const TokenScratch& s) {
  for (int64_t i = 0; i < count; ++i) {
    s.gammas[i] = *at<float>(call.g, token + i, head);
    s.betas[i] = read_beta(call, token + i, head);
  }
  each_vector(0, count, [&](int64_t i, auto... lanes) {
    store(s.gammas + i, exp(load(s.gammas + i, lanes...)), lanes...);
  });
}

template <int kColumns>
KP_INLINE void read_state(const float* state, const float* k, int64_t K, F32x16 (&p)[kColumns]) {
  for (int c = 0; c < kColumns; ++c) p[c] = zero();
  for (int64_t d = 0; d < K; ++d)
    for (int c = 0; c < kColumns; ++c)
      p[c] = fma(load(state + (d * kColumns + c) * kLanes), splat(k[d]), p[c]);
}

// One token: w in, o and the next token's p out.
template <int kColumns>
KP_INLINE void step(float* state, const float* q_row, const float* k_row, const float* next_row, int64_t K,
                    float gamma, const F32x16 (&w)[kColumns], F32x16 (&o)[kColumns], F32x16 (&p)[kColumns]) {
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) o[c] = p[c] = zero();
  const F32x16 decay = splat(gamma);
  for (int64_t d = 0; d < K; ++d) {
    const F32x16 k = splat(k_row[d]), q = splat(q_row[d]), next = splat(next_row[d]);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* at = state + (d * kColumns + c) * kLanes;
      const F32x16 updated = fma(k, w[c], load(at) * decay);
      store(at, updated);
      o[c] = fma(q, updated, o[c]);
      p[c] = fma(next, updated, p[c]);
    }
  }
}

template <int kColumns>
void move_state(const Call& call, const Sequence& seq, const Block& block, bool in) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2];
  for (int64_t k0 = 0; k0 < K; k0 += 16)
    for (int c = 0; c < kColumns; ++c) {
      const int64_t v0 = block.column + c * kLanes;
      F32x16 rows[16] = {};
      float* part = block.state + (k0 * kColumns + c) * kLanes;
      if (in) {
        if (v0 < V && seq.initial_slot >= 0)
          load_state_block(call, seq.initial_slot, block.head, k0, v0, rows);
        for (int i = 0; i < 16; ++i) store(part + i * kColumns * kLanes, rows[i]);
      } else if (v0 < V) {
        for (int i = 0; i < 16; ++i) rows[i] = load(part + i * kColumns * kLanes);
        store_state_block(call, seq.final_slot, block.head, k0, v0, rows);
      }
    }
}

// The state of a block, and what its first key finds in it.
template <int kColumns>
KP_NOINLINE void begin_block(const Call& call, const Sequence& seq, const Block& block, const float* k) {
  move_state<kColumns>(call, seq, block, true);
  F32x16 p[kColumns];
  read_state<kColumns>(block.state, k, call.q.sizes[2], p);
  for (int c = 0; c < kColumns; ++c) store(block.p + c * kLanes, p[c]);
}

// Rows lie pages apart, so the hardware does not see the next ones coming: they are fetched one by one, as far
// ahead as a block takes tokens. No nearer than the L2, for the state fills most of the L1.
KP_INLINE void prefetch_row(const View& x, int64_t token, int64_t head, int64_t first, int64_t count) {
  const int64_t size = element_size(x.dtype);
  const char* from = at(x, token, head) + first * size;
  for (int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// `count` tokens of a block, whose rows and gates are in the scratch.
template <class T, int kColumns>
KP_NOINLINE void run_block(const Call& call, const Sequence& seq, const Block& block, int64_t token,
                           int64_t count, bool first, const TokenScratch& s) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2], row = round_up(K, kLanes);
  F32x16 p[kColumns], w[kColumns], o[kColumns];
  for (int c = 0; c < kColumns; ++c) p[c] = load(block.p + c * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t ahead = token + i + kTokens; ahead < seq.end) {
      const int64_t key_head = block.head / call.heads_per_key;
      if (first) prefetch_row(call.q, ahead, key_head, 0, K), prefetch_row(call.k, ahead, key_head, 0, K);
      prefetch_row(call.v, ahead, block.head, block.column, least(V - block.column, kColumns * kLanes));
    }
    const float gamma = s.gammas[i], beta = s.betas[i], k_factor = s.k_factors[i];
    const T* v = at<T>(call.v, token + i, block.head) + block.column;
    for (int c = 0; c < kColumns; ++c) {
      const int lanes = lanes_left(V - block.column - c * kLanes);
      const F32x16 values = lanes > 0 ? load_some(v + c * kLanes, lanes) : zero();
      w[c] = (values - p[c] * splat(gamma * k_factor)) * splat(beta * k_factor);
    }
    step<kColumns>(block.state, s.q + i * row, s.k + i * row, s.k + (i + 1) * row, K, gamma, w, o, p);
    T* out = at<T>(call.out, token + i, block.head) + block.column;
    for (int c = 0; c < kColumns; ++c) {
      const int lanes = lanes_left(V - block.column - c * kLanes);
      if (lanes > 0) store_some(out + c * kLanes, o[c] * splat(s.q_factors[i]), lanes);
    }
  }
  for (int c = 0; c < kColumns; ++c) store(block.p + c * kLanes, p[c]);
}

// One sequence and the blocks of a share of a key head's value heads.
template <class T>
void run_tokens(const Call& call, const Sequence& seq, const Share& share, char* memory) {
  TokenScratch s;
  allocate(s, call, share.end - share.begin, memory);
  const int64_t K = round_up(call.q.sizes[2], kLanes), of_head = blocks_of_head(call);
  const auto each_block = [&](const auto& body) KP_LAMBDA_INLINE {
    for (int64_t b = share.begin; b < share.end; ++b) {
      const int64_t i = b - share.begin;
      const Block block{share.key_head * call.heads_per_key + b / of_head, b % of_head * kBlockColumns,
                        s.states + i * K * kBlockColumns, s.p + i * kBlockColumns};
      with_row_count<kMaxColumns>(divide_up(call.v.sizes[2] - block.column, kLanes),
                                  [&](auto columns) { body(block, columns); });
    }
  };
  load_row<T>(call, call.k, seq.begin, share.key_head, s.k);
  each_block([&](const Block& block, auto columns) {
    begin_block<decltype(columns)::value>(call, seq, block, s.k);
  });
  for (int64_t token = seq.begin; token < seq.end; token += kTokens) {
    const int64_t count = least(seq.end - token, kTokens);
    load_rows<T>(call, seq, share.key_head, token, count, s);
    int64_t head = -1;  // whose gates are in the scratch
    each_block([&](const Block& block, auto columns) {
      if (block.head != head) load_gates(call, block.head, token, count, s);
      run_block<T, decltype(columns)::value>(call, seq, block, token, count, head < 0, s);
      head = block.head;
    });
  }
  each_block([&](const Block& block, auto columns) {
    move_state<decltype(columns)::value>(call, seq, block, false);
  });
}

}  // namespace
}  // namespace kernelpair::KP_TIER
