// The chunk form of the gated delta rule on tiles, for bf16.
//
// In a chunk of 64 tokens, with G the cumulative log decay, S the state before the chunk and w the written
// values,
//   (1 + A) w = beta (v - exp(G) k S),      A_ij = beta_i exp(G_i - G_j) k_i.k_j   for j < i
//   o         = exp(G) q S + M w,           M_ij =        exp(G_i - G_j) q_i.k_j   for j <= i
//   S'        = exp(G_last) S + sum_j k_j (exp(G_last - G_j) w_j)^T
// - q and k enter the products as they are; 1/|k|, 1/|q| and the scale are factors of rows and columns.
// - exp(G_i - G_j) is a product of two factors that meet at the row block's start, exact inside the diagonal
//   16 x 16 blocks: no factor exceeds 1 where g <= 0, so nothing overflows however fast the state decays.
// - 1 + A is inverted in fp32 in blocks of 32 tokens (16 x 16 by substitution, one merge); the lower left
//   block of A joins by a product. Token p and p + 16 make a pair of a tile's depth: two fp32 rows pack into
//   it without a permutation.
// - S stays in fp32, in tile order; its bf16 copy lives for one strip of columns, made while the decay is
//   multiplied in.
// - All work on columns of V runs in strips, so that a strip's intermediates stay in the L1 cache; a share of
//   the next chunk is fetched with each.
// Tokens past the end are neutral: k = q = 0, beta = 0, g = 0.
//
// What was fp32 and is an operand is rounded to bf16; in an accurate call (kParts = 2) it is the sum of two
// bf16 numbers, which keep 16 bits of it, and their products are added up.
#pragma once

#include "delta_rule/chunk.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(chunk_tiles_second_half);
KP_PATH(chunk_tiles_padded);
KP_PATH(chunk_tiles_accurate);

// --- one strip of columns ----------------------------------------------------------------------------------

// The bf16 copy of a strip of the state, as B tiles, and the chunk's decay multiplied into the fp32 original.
template <int kParts>
void convert_state(const StripChunk& strip, float* state, float decay, const Sizes& n) {
  for (int64_t kt = 0; kt < n.key_tiles; ++kt)
    for (int c = 0; c < 2; ++c) {
      float* from = state + (kt * 2 + c) * kTileFloats;
      Bf16* to = strip.state + (kt / 2 * 2 + c) * kTileHalves + kt % 2 * 8 * 32;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) {
        const F32x16 even = load(from + 2 * p * kTileRows), odd = load(from + (2 * p + 1) * kTileRows);
        store_pairs<kParts>(to + p * 32, state_part(n), even, odd);
        store(from + 2 * p * kTileRows, even * splat(decay));
        store(from + (2 * p + 1) * kTileRows, odd * splat(decay));
      }
    }
}

// A half's rows times the strip of the state.
template <int kParts>
void multiply_state(const StripChunk& strip, const Bf16* rows, float* products, int64_t half,
                    const Sizes& n) {
  const int64_t row_block = n.depth * kTileHalves;
  multiply<kParts>(operand(rows + 2 * half * row_block, row_block, kTileHalves),
                   operand(strip.state, kTileHalves, 2 * kTileHalves, state_part(n)), n.depth,
                   products + 4 * half * kTileFloats);
}

// A product over one half's tokens, into strip.solved.
template <int kParts>
KP_INLINE void multiply_half(const StripChunk& strip, const Bf16* a, int64_t a_part, const Bf16* b,
                             int64_t b_part) {
  multiply<kPartPairs<kParts>>(operand(a, kTileHalves, 0, a_part), operand(b, kTileHalves, 0, b_part), 1,
                               strip.solved);
}

// beta (v - exp(G) k S), minus what the first half has written if kCoupled, as B tiles.
template <int kParts, bool kCoupled>
KP_INLINE void form_right_side(const StripChunk& strip, const GateChunk& gate, const Bf16* v,
                               int64_t v_stride, int64_t half) {
  for (int c = 0; c < 2; ++c)
    for (int p = 0; p < kTileRows; ++p) {
      F32x16 rows[2];
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        const int64_t i = half * kHalf + r * kTileRows + p;
        const float* k_state = strip.k_state + ((2 * half + r) * 2 + c) * kTileFloats + p * kTileRows;
        const F32x16 values = load(v + i * v_stride + c * kLanes);
        rows[r] = values * splat(gate.beta[i]) - load(k_state) * splat(gate.residual[i]);
        if constexpr (kCoupled)
          rows[r] = rows[r] - load(strip.solved + (2 * r + c) * kTileFloats + p * kTileRows);
      }
      store_pairs<kParts>(strip.right_side + c * kTileHalves + p * 32, kRightSidePart, rows[0], rows[1]);
    }
}

// w as B tiles: for this chunk's outputs, and scaled for the new state.
template <int kParts>
KP_INLINE void keep_written(const StripChunk& strip, const GateChunk& gate, int64_t half) {
  for (int c = 0; c < 2; ++c) {
    Bf16* written = strip.written + (half * 2 + c) * kTileHalves;
    Bf16* carried = strip.carried + (half * 2 + c) * kTileHalves;
    for (int p = 0; p < kTileRows; ++p) {
      const int64_t i = half * kHalf + p;
      const F32x16 first = load(strip.solved + c * kTileFloats + p * kTileRows);
      const F32x16 second = load(strip.solved + (2 + c) * kTileFloats + p * kTileRows);
      store_pairs<kParts>(written + p * 32, kWrittenPart, first, second);
      store_pairs<kParts>(carried + p * 32, kWrittenPart, first * splat(gate.writing[i]),
                          second * splat(gate.writing[i + kTileRows]));
    }
  }
}

// o of one half: the product with this chunk's w joins what the state gave.
template <int kParts>
void read_out(const StripChunk& strip, const GateChunk& gate, int64_t half, int64_t tokens, int64_t columns,
              Bf16* out, int64_t out_stride) {
  multiply<kPartPairs<kParts>>(
      operand(gate.attend + 4 * half * kTileHalves, 2 * kTileHalves, kTileHalves, kAttendPart),
      operand(strip.written, kTileHalves, 2 * kTileHalves, kWrittenPart), half + 1, strip.solved);
  for (int64_t i = half * kHalf; i < least(tokens, (half + 1) * kHalf); ++i) {
    const int64_t row = i % kTileRows * kTileRows, r = i % kHalf / kTileRows;
    F32x16 o[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j)
      o[j] = fma(load(strip.q_state + ((2 * half + r) * 2 + j) * kTileFloats + row), splat(gate.readout[i]),
                 load(strip.solved + (2 * r + j) * kTileFloats + row));
    const I32x16 rounded = pack_row(o[0], o[1]);
    Bf16* to = out + i * out_stride;
    if (columns == kStrip && (reinterpret_cast<intptr_t>(to) & 63) == 0)
      stream_line(to, &rounded);
    else
      __builtin_memcpy(to, &rounded, columns * sizeof(Bf16));
  }
}

template <int kParts>
void update_state(const StripChunk& strip, const KeyChunk& key, float* state, int64_t halves,
                  const Sizes& n) {
  for (int64_t kt = 0; kt < n.key_tiles; kt += 2) {
    multiply<kParts>(operand(key.k_columns + kt * 2 * kTileHalves, 2 * kTileHalves, kTileHalves),
                     operand(strip.carried, kTileHalves, 2 * kTileHalves, kWrittenPart), halves,
                     state + kt * 2 * kTileFloats, true);
  }
}

struct StripTokens {
  const Bf16* v;
  int64_t v_stride;
  Bf16* out;
  int64_t out_stride;
  int64_t tokens, columns;
};

template <int kParts>
void run_strip(const TileScratch& s, float* state, const StripTokens& x, int64_t halves, const Sizes& n) {
  const StripChunk& strip = s.strip;
  const GateChunk& gate = s.gate;
  const auto multiply_rows = [&](const Bf16* rows, float* products) {
    for (int64_t half = 0; half < halves; ++half) multiply_state<kParts>(strip, rows, products, half, n);
  };
  const auto solve = [&](int64_t half) {
    multiply_half<kParts>(strip, gate.inverse + half * 2 * kTileHalves, kInversePart, strip.right_side,
                          kRightSidePart);
    keep_written<kParts>(strip, gate, half);
  };
  convert_state<kParts>(strip, state, gate.decay, n);
  multiply_rows(s.key.k_rows, strip.k_state);
  form_right_side<kParts, false>(strip, gate, x.v, x.v_stride, 0);
  multiply_rows(s.key.q_rows, strip.q_state);
  solve(0);
  if (halves > 1) {
    mark(paths::chunk_tiles_second_half);
    multiply_half<kParts>(strip, gate.coupling, kCouplingPart, strip.written, kWrittenPart);
    form_right_side<kParts, true>(strip, gate, x.v, x.v_stride, 1);
    solve(1);
  }
  update_state<kParts>(strip, s.key, state, halves, n);
  for (int64_t half = 0; half < halves; ++half)
    read_out<kParts>(strip, gate, half, x.tokens, x.columns, x.out, x.out_stride);
}

// v of a chunk and strip: in place where it is whole, else a copy padded with zeros.
StripTokens strip_tokens(const Call& call, const TileScratch& s, int64_t head, int64_t token, int64_t tokens,
                         int64_t padded, int64_t column) {
  const int64_t columns = least(call.v.sizes[2] - column, kStrip);
  StripTokens x = {at<Bf16>(call.v, token, head) + column,
                   call.v.strides[0],
                   at<Bf16>(call.out, token, head) + column,
                   call.out.strides[0],
                   tokens,
                   columns};
  if (tokens == padded && columns == kStrip) return x;
  mark(paths::chunk_tiles_padded);
  __builtin_memset(s.values, 0, kChunk * kStrip * sizeof(Bf16));
  for (int64_t i = 0; i < tokens; ++i)
    __builtin_memcpy(s.values + i * kStrip, x.v + i * x.v_stride, columns * sizeof(Bf16));
  x.v = s.values;
  x.v_stride = kStrip;
  return x;
}

// --- a sequence --------------------------------------------------------------------------------------------

void move_states(const Call& call, const Sequence& seq, const TileScratch& s, int64_t first_head,
                 const Sizes& n, bool in) {
  for (int64_t h = 0; h < n.heads; ++h)
    for (int64_t tile = 0; tile < n.strips * n.key_tiles * 2; ++tile) {
      float* block = s.state + (h * n.strips * n.key_tiles * 2 + tile) * kTileFloats;
      const int64_t k0 = tile / 2 % n.key_tiles * 16, v0 = tile / 2 / n.key_tiles * kStrip + tile % 2 * 16;
      const bool inside = k0 < n.K && v0 < n.V;
      F32x16 rows[16] = {};
      if (in) {
        if (inside && seq.initial_slot >= 0)
          load_state_block(call, seq.initial_slot, first_head + h, k0, v0, rows);
        for (int i = 0; i < 16; ++i) store(block + i * kTileRows, rows[i]);
      } else if (inside) {
        for (int i = 0; i < 16; ++i) rows[i] = load(block + i * kTileRows);
        store_state_block(call, seq.final_slot, first_head + h, k0, v0, rows);
      }
    }
}

Sizes tile_sizes(const Call& call) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2], depth = round_up(K, 32) / 32;
  return {.K = K,
          .V = V,
          .depth = depth,
          .key_tiles = 2 * depth,
          .strips = round_up(V, kStrip) / kStrip,
          .heads = call.heads_per_key,
          .parts = call.accurate ? 2 : 1};
}

int64_t tile_scratch_bytes(const Call& call) {
  TileScratch scratch;
  return allocate(scratch, tile_sizes(call), nullptr);
}

// Fetches one share of the next chunk's q, k and v into the L2 cache: their rows lie a page or more apart,
// where the hardware does not look ahead.
KP_INLINE void fetch_ahead(const Call& call, int64_t key_head, int64_t token, int64_t end, int64_t share,
                           int64_t shares, const Sizes& n) {
  const auto fetch = [](const char* row, int64_t elements) KP_LAMBDA_INLINE {
    for (int64_t i = 0; i < elements * 2; i += 64) __builtin_prefetch(row + i, 0, 2);
  };
  const int64_t last = least(end, token + (share + 1) * kChunk / shares);
  for (int64_t t = token + share * kChunk / shares; t < last; ++t) {
    fetch(at(call.k, t, key_head), n.K);
    fetch(at(call.q, t, key_head), n.K);
    for (int64_t h = 0; h < n.heads; ++h) fetch(at(call.v, t, key_head * n.heads + h), n.V);
  }
}

// One sequence and key head with all its value heads.
template <int kParts>
void run_tiles(const Call& call, const Sequence& seq, int64_t key_head, char* block) {
  if constexpr (kParts == 2) mark(paths::chunk_tiles_accurate);
  const Sizes n = tile_sizes(call);
  TileScratch s;
  allocate(s, n, block);
  const int64_t first_head = key_head * n.heads;
  move_states(call, seq, s, first_head, n, true);
  for (int64_t token = seq.begin; token < seq.end; token += kChunk) {
    const int64_t tokens = least(seq.end - token, kChunk), padded = round_up(tokens, kHalf);
    prepare_keys(call, s.key, key_head, token, tokens, padded, n);
    for (int64_t h = 0; h < n.heads; ++h) {
      prepare_gates(call, s.key, s.gate, first_head + h, token, tokens);
      fill_triangle<kParts>(s.key, s.gate, padded / kHalf);
      for (int64_t half = 0; half < padded / kHalf; ++half) invert_half<kParts>(s.gate, half);
      for (int64_t strip = 0; strip < n.strips; ++strip) {
        float* state = s.state + (h * n.strips + strip) * n.key_tiles * 2 * kTileFloats;
        fetch_ahead(call, key_head, token + kChunk, seq.end, h * n.strips + strip, n.heads * n.strips, n);
        run_strip<kParts>(s, state,
                          strip_tokens(call, s, first_head + h, token, tokens, padded, strip * kStrip),
                          padded / kHalf, n);
      }
    }
  }
  move_states(call, seq, s, first_head, n, false);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
