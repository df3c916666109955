// The gated delta rule token by token on vectors, everything in fp32: for fp32 and fp16, and for tiers
// without tiles.
//
// Value columns are independent of each other, so a block of up to 64 of them takes its part of the state
// through some tokens while it stays in the L1 cache. One pass over it serves a token completely: with
// p = S^T k known from the pass before,
//   w = beta (v - exp(g) p);  then for each row  s = exp(g) s + k w;  o += q s;  p' += k' s  (k' the next).
// Rows of q and k are taken as they are; 1 / |q| and the scale multiply o, 1 / |k| multiplies p and w. So does the
// decay: what is stored is s over the product of the latest exp(g), the level, which multiplies o and p, and w is
// divided by it. The rows themselves are multiplied only where the level leaves [1, kMostLevel]: s over it is a number
// where s is one.
//
// On AVX512 stores of whole vectors, not the multiply-adds, set the pace: a pass serves two tokens, which takes half of
// them. It finds the p of two keys; what the first token's w adds to the second one's p is w times the product of both
// keys.
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

// Vectors of 16 columns that one pass carries: their o, p and w take 3 registers each of 32 for each token, or 6 of 16
// below AVX512, where w is read from memory.
constexpr int kMaxColumns = kVectorBytes == 64 ? 4 : 2;
constexpr int64_t kBlockColumns = kMaxColumns * kLanes;
// Tokens of a pass.
constexpr int kPassTokens = kVectorBytes == 64 ? 2 : 1;
// Tokens that a block takes while the others wait. 16 to 128 are equally fast.
constexpr int64_t kTokens = 64;

// 5 decays of 1/2, or 67 of 0.95, between two passes that multiply all rows. A power of 2.
constexpr float kMostLevel = 32;

// Of a key head and its blocks of value columns.
struct TokenScratch {
  float *q, *k;                  // [tokens][K], [tokens + kPassTokens][K]: the keys behind the last token too
  float *q_factors, *k_factors;  // what comes of these rows is multiplied with
  float* neighbours;             // [tokens]: the product of a key and the one behind it
  float *gammas, *betas;         // [tokens] of one value head
  float* p;                      // [blocks][pass tokens][columns]: what the next keys find in the rows
  float* levels;                 // [blocks]: what the rows and p are to be multiplied with
  float* states;                 // [blocks][K][columns]
};

// A block of columns of one value head.
struct Block {
  int64_t head, column;
  float *state, *p, *level;
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
  s.k = allocator.take<float>((kTokens + kPassTokens) * K);
  s.q_factors = allocator.take<float>(kTokens);
  s.k_factors = allocator.take<float>(kTokens + kPassTokens);
  s.neighbours = allocator.take<float>(kTokens);
  s.gammas = allocator.take<float>(kTokens);
  s.betas = allocator.take<float>(kTokens);
  s.p = allocator.take<float>(blocks * kPassTokens * kBlockColumns);
  s.levels = allocator.take<float>(blocks);
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

// A key of a sequence, or its last one.
template <class T>
KP_INLINE float load_key(const Call& call, const Sequence& seq, int64_t key_head, int64_t token, float* to) {
  return load_row<T>(call, call.k, token < seq.end ? token : seq.end - 1, key_head, to);
}

// The rows of `count` tokens and of the keys behind them.
template <class T>
KP_NOINLINE void load_rows(const Call& call, const Sequence& seq, int64_t key_head, int64_t token,
                           int64_t count, const TokenScratch& s) {
  const int64_t K = round_up(call.q.sizes[2], kLanes);
  for (int64_t i = 0; i < count; ++i)
    s.q_factors[i] = call.scale * load_row<T>(call, call.q, token + i, key_head, s.q + i * K);
  for (int64_t i = 0; i < count + kPassTokens; ++i)
    s.k_factors[i] = load_key<T>(call, seq, key_head, token + i, s.k + i * K);
  for (int64_t i = 0; kPassTokens > 1 && i < count; ++i) {
    F32x16 sum = zero();
    for (int64_t d = i * K; d < (i + 1) * K; d += kLanes) sum = fma(load(s.k + d), load(s.k + d + K), sum);
    s.neighbours[i] = reduce_add(sum);
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

// What a pass needs and makes: a vector for each token of it and each column of the block.
template <int kCount, int kColumns>
using PassVectors = F32x16[kCount][kColumns];

template <int kCount, int kColumns>
KP_INLINE void clear(PassVectors<kCount, kColumns>& vectors) {
  for (auto& of_token : vectors)
    for (F32x16& vector : of_token) vector = zero();
}

// What the keys of `k` find in a state.
template <int kColumns>
KP_INLINE void read_state(const float* state, const float* k, int64_t row, int64_t K,
                          PassVectors<kPassTokens, kColumns>& p) {
  clear<kPassTokens, kColumns>(p);
  for (int64_t d = 0; d < K; ++d)
    for (int c = 0; c < kColumns; ++c) {
      const F32x16 of_state = load(state + (d * kColumns + c) * kLanes);
      for (int t = 0; t < kPassTokens; ++t) p[t][c] = fma(of_state, splat(k[t * row + d]), p[t][c]);
    }
}

// Kept between two runs of a block.
template <int kColumns>
KP_INLINE void move_found(const Block& block, PassVectors<kPassTokens, kColumns>& p, bool in) {
  for (int t = 0; t < kPassTokens; ++t)
    for (int c = 0; c < kColumns; ++c) {
      float* at = block.p + (t * kColumns + c) * kLanes;
      if (in)
        p[t][c] = load(at);
      else
        store(at, p[t][c]);
    }
}

// kCount tokens: w in, o and p of the keys behind them out. The rows are multiplied with `factor`, or with nothing.
template <int kColumns, int kCount, class... Factor>
KP_INLINE void step(float* state, const float* q_row, const float* k_row, int64_t row, int64_t K,
                    const PassVectors<kCount, kColumns>& w, PassVectors<kCount, kColumns>& o,
                    PassVectors<kPassTokens, kColumns>& p, Factor... factor) {
  clear<kCount, kColumns>(o);
  clear<kPassTokens, kColumns>(p);
  for (int64_t d = 0; d < K; ++d) {
    F32x16 q[kCount], k[kCount + kPassTokens];
    for (int t = 0; t < kCount; ++t) q[t] = splat(q_row[t * row + d]);
    for (int t = 0; t < kCount + kPassTokens; ++t) k[t] = splat(k_row[t * row + d]);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* at = state + (d * kColumns + c) * kLanes;
      F32x16 updated = (load(at) * ... * factor);
#pragma GCC unroll 2
      for (int t = 0; t < kCount; ++t) {
        updated = fma(k[t], w[t][c], updated);
        o[t][c] = fma(q[t], updated, o[t][c]);
      }
      store(at, updated);
#pragma GCC unroll 2
      for (int t = 0; t < kPassTokens; ++t) p[t][c] = fma(k[kCount + t], updated, p[t][c]);
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
        for (int i = 0; i < 16; ++i) rows[i] = load(part + i * kColumns * kLanes) * splat(*block.level);
        store_state_block(call, seq.final_slot, block.head, k0, v0, rows);
      }
    }
}

// The state of a block, and what its first keys find in it.
template <int kColumns>
KP_NOINLINE void begin_block(const Call& call, const Sequence& seq, const Block& block, const float* k) {
  move_state<kColumns>(call, seq, block, true);
  PassVectors<kPassTokens, kColumns> p;
  read_state<kColumns>(block.state, k, round_up(call.q.sizes[2], kLanes), call.q.sizes[2], p);
  move_found<kColumns>(block, p, false);
  *block.level = 1;
}

// Rows lie pages apart, so the hardware does not see the next ones coming: they are fetched one by one, as far
// ahead as a block takes tokens. No nearer than the L2, for the state fills most of the L1.
KP_INLINE void prefetch_row(const View& x, int64_t token, int64_t head, int64_t first, int64_t count) {
  const int64_t size = element_size(x.dtype);
  const char* from = at(x, token, head) + first * size;
  for (int64_t i = 0; i < count * size; i += 64) __builtin_prefetch(from + i, 0, 2);
}

KP_INLINE bool in_range(float level) { return level >= 1 && level <= kMostLevel; }

// Whether tokens i and i + 1 may share a pass: neither multiplies the rows.
KP_INLINE bool share_pass(const TokenScratch& s, int64_t i, float level) {
  const float first = level * s.gammas[i];
  return in_range(first) && in_range(first * s.gammas[i + 1]);
}

// kCount tokens of a block, from `i` on in the scratch and `token` in the call.
template <class T, int kColumns, int kCount>
KP_INLINE void take_tokens(const Call& call, const Block& block, int64_t token, int64_t i,
                           const TokenScratch& s, float& level, PassVectors<kPassTokens, kColumns>& p) {
  const int64_t K = call.q.sizes[2], row = round_up(K, kLanes);
  const auto each_column = [&](const auto& body) KP_LAMBDA_INLINE {
    for (int c = 0; c < kColumns; ++c) body(c, lanes_left(call.v.sizes[2] - block.column - c * kLanes));
  };
  PassVectors<kCount, kColumns> w, o;
  const bool scaled = kCount == 1 && !in_range(level * s.gammas[i]);
  const float factor = s.gammas[i] * (level / kMostLevel);  // of the rows, if they are scaled
  float levels[kCount];
  for (int t = 0; t < kCount; ++t) {
    const float gamma = s.gammas[i + t], k_factor = s.k_factors[i + t], before = level * k_factor;
    level = levels[t] = scaled ? kMostLevel : level * gamma;
    const T* v = at<T>(call.v, token + t, block.head) + block.column;
    each_column([&](int c, int lanes) KP_LAMBDA_INLINE {
      const F32x16 values = lanes > 0 ? load_some(v + c * kLanes, lanes) : zero();
      const F32x16 found = t ? fma(splat(s.neighbours[i]), w[0][c], p[t][c]) : p[t][c];
      w[t][c] = (values - found * splat(before) * splat(gamma)) * splat(s.betas[i + t] * k_factor / level);
    });
  }
  const float *q_row = s.q + i * row, *k_row = s.k + i * row;
  if (scaled)
    step<kColumns, kCount>(block.state, q_row, k_row, row, K, w, o, p, splat(factor));
  else
    step<kColumns, kCount>(block.state, q_row, k_row, row, K, w, o, p);
  for (int t = 0; t < kCount; ++t) {
    T* out = at<T>(call.out, token + t, block.head) + block.column;
    each_column([&](int c, int lanes) KP_LAMBDA_INLINE {
      if (lanes > 0)
        store_some(out + c * kLanes, o[t][c] * splat(levels[t]) * splat(s.q_factors[i + t]), lanes);
    });
  }
}

// `count` tokens of a block, whose rows and gates are in the scratch.
template <class T, int kColumns>
KP_NOINLINE void run_block(const Call& call, const Sequence& seq, const Block& block, int64_t token,
                           int64_t count, bool first, const TokenScratch& s) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2];
  PassVectors<kPassTokens, kColumns> p;
  move_found<kColumns>(block, p, true);
  float level = *block.level;
  const auto prefetch = [&](int64_t ahead) {
    if (ahead >= seq.end) return;
    const int64_t key_head = block.head / call.heads_per_key;
    if (first) prefetch_row(call.q, ahead, key_head, 0, K), prefetch_row(call.k, ahead, key_head, 0, K);
    prefetch_row(call.v, ahead, block.head, block.column, least(V - block.column, kColumns * kLanes));
  };
  for (int64_t i = 0; i < count; ++i) {
    prefetch(token + i + kTokens);
    if (kPassTokens > 1 && i + 1 < count && share_pass(s, i, level)) {
      take_tokens<T, kColumns, kPassTokens>(call, block, token + i, i, s, level, p);
      prefetch(token + ++i + kTokens);
    } else {
      take_tokens<T, kColumns, 1>(call, block, token + i, i, s, level, p);
    }
  }
  *block.level = level;
  move_found<kColumns>(block, p, false);
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
                        s.states + i * K * kBlockColumns, s.p + i * kPassTokens * kBlockColumns,
                        s.levels + i};
      with_row_count<kMaxColumns>(divide_up(call.v.sizes[2] - block.column, kLanes),
                                  [&](auto columns) { body(block, columns); });
    }
  };
  for (int64_t t = 0; t < kPassTokens; ++t)
    load_key<T>(call, seq, share.key_head, seq.begin + t, s.k + t * K);
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
