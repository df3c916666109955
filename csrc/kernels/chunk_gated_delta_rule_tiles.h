// The chunk form of the gated delta rule on tiles, for bf16.
//
// In a chunk of 64 tokens, with G the cumulative log decay, S the state before the chunk and w the written values,
//   (1 + A) w = beta (v - exp(G) k S),      A_ij = beta_i exp(G_i - G_j) k_i.k_j   for j < i
//   o         = exp(G) q S + M w,           M_ij =        exp(G_i - G_j) q_i.k_j   for j <= i
//   S'        = exp(G_last) S + sum_j k_j (exp(G_last - G_j) w_j)^T
// - q and k enter the products as they are; 1/|k|, 1/|q| and the scale are factors of rows and columns.
// - exp(G_i - G_j) is a product of two factors that meet at the row block's start, exact inside the diagonal 16 x 16 blocks:
//   no factor exceeds 1 where g <= 0, so nothing overflows however fast the state decays.
// - 1 + A is inverted in fp32 in blocks of 32 tokens (16 x 16 by substitution, one merge); the lower left block of A joins by
//   a product. Token p and p + 16 make a pair of a tile's depth: two fp32 rows pack into it without a permutation.
// - S stays in fp32, in tile order; its bf16 copy lives for one strip of columns, made while the decay is multiplied in.
// - All work on columns of V runs in strips, so that a strip's intermediates stay in the L1 cache.
// Tokens past the end are neutral: k = q = 0, beta = 0, g = 0.
#pragma once

#include "kernels/chunk_gated_delta_rule.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kChunk = 64;      // tokens: 16 x 16 blocks of A grow with its square, passes over S fall with it
constexpr int kHalf = 32;       // tokens of one tile depth
constexpr int kStrip = 32;      // value columns of one strip: two tiles
constexpr int kBlocks = kChunk / kTileRows;

struct Sizes {
  int64_t K, V;
  int64_t depth;      // tiles of 32 channels over K
  int64_t key_tiles;  // tiles of 16 channels over K, even
  int64_t strips;
  int64_t heads;      // value heads of one key head
};

// One chunk of one key head, shared by its value heads.
struct KeyChunk {
  Bf16 *k_rows, *q_rows;  // [4][depth] A tiles: 16 tokens x 32 channels
  Bf16* k_pairs;          // [depth][4] B tiles: 16 channel pairs x 16 tokens
  Bf16* k_columns;        // [key_tiles][2] A tiles: 16 channels x 32 tokens
  float *kk, *qk;         // [4][4] C tiles: k_i.k_j and q_i.k_j, the blocks that reach below the diagonal
  float *k_norm, *q_norm;  // [64] 1/|k| and scale/|q|, or 1 and scale
};

// One chunk of one value head.
struct GateChunk {
  float *cum, *beta;  // [64] cumulative log decay
  float* residual;    // beta exp(G) / |k|: the factor of k S
  float* readout;     // exp(G) scale / |q|: the factor of q S
  float* writing;     // exp(G_last - G) / |k|: the factor of w in the new state
  float decay;        // exp(G_last)
  float *diagonal, *below;  // fp32 A: [4] diagonal blocks; [2] blocks below them inside a half
  Bf16 *inverse;            // [2 halves][2] A tiles of (1 + A)^-1
  Bf16 *coupling;           // [2] A tiles: the second half's rows of A, the first half's columns
  Bf16 *attend;             // [4][2] A tiles of M
};

// One strip of columns: its products with k, q and the solve, as C tiles, and operands of the next products, as B tiles.
struct StripChunk {
  float *k_state, *q_state;  // [4][2] C tiles
  float* solved;             // [2][2] C tiles
  Bf16* state;               // [depth][2] B tiles
  Bf16* right_side;          // [2] B tiles
  Bf16 *written, *carried;   // [2 halves][2] B tiles: w, and w times `writing`
};

struct TileScratch {
  KeyChunk key;
  GateChunk gate;
  StripChunk strip;
  float* state;  // [heads][strips][key_tiles][2] C tiles
  Bf16* values;  // [64][32] a strip of v where it is cut at an edge
};

int64_t carve(TileScratch& s, const Sizes& n, char* block) {
  Carver carver{block};
  s.key.k_rows = carver.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.q_rows = carver.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.k_pairs = carver.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.k_columns = carver.take<Bf16>(n.key_tiles * 2 * kTileHalves);
  s.key.kk = carver.take<float>(kBlocks * kBlocks * kTileFloats);
  s.key.qk = carver.take<float>(kBlocks * kBlocks * kTileFloats);
  s.key.k_norm = carver.take<float>(kChunk);
  s.key.q_norm = carver.take<float>(kChunk);
  s.gate.cum = carver.take<float>(kChunk);
  s.gate.beta = carver.take<float>(kChunk);
  s.gate.residual = carver.take<float>(kChunk);
  s.gate.readout = carver.take<float>(kChunk);
  s.gate.writing = carver.take<float>(kChunk);
  s.gate.diagonal = carver.take<float>(kBlocks * kTileFloats);
  s.gate.below = carver.take<float>(2 * kTileFloats);
  s.gate.inverse = carver.take<Bf16>(4 * kTileHalves);
  s.gate.coupling = carver.take<Bf16>(2 * kTileHalves);
  s.gate.attend = carver.take<Bf16>(8 * kTileHalves);
  s.strip.k_state = carver.take<float>(kBlocks * 2 * kTileFloats);
  s.strip.q_state = carver.take<float>(kBlocks * 2 * kTileFloats);
  s.strip.solved = carver.take<float>(4 * kTileFloats);
  s.strip.state = carver.take<Bf16>(n.depth * 2 * kTileHalves);
  s.strip.right_side = carver.take<Bf16>(2 * kTileHalves);
  s.strip.written = carver.take<Bf16>(4 * kTileHalves);
  s.strip.carried = carver.take<Bf16>(4 * kTileHalves);
  s.values = carver.take<Bf16>(kChunk * kStrip);
  s.state = carver.take<float>(n.heads * n.strips * n.key_tiles * 2 * kTileFloats);
  return carver.used;
}

// --- one key head ----------------------------------------------------------------------------------------------------

// Copies up to 64 rows into A tiles, zero past the tokens and past K.
void gather_rows(const View& x, int64_t head, int64_t token, int64_t tokens, int64_t padded, const Sizes& n, Bf16* tiles) {
  for (int64_t i = 0; i < padded; ++i) {
    Bf16* row = tiles + i / kTileRows * n.depth * kTileHalves + i % kTileRows * 32;
    const char* from = i < tokens ? at(x, token + i, head) : nullptr;
    for (int64_t d = 0; d < n.depth; ++d, row += kTileHalves) {
      const int64_t bytes = from ? smaller(n.K - d * 32, 32) * 2 : 0;
      if (bytes == 64) {
        __builtin_memcpy(row, from + d * 64, 64);
      } else {
        __builtin_memset(row, 0, 64);
        if (bytes > 0) __builtin_memcpy(row, from + d * 64, bytes);
      }
    }
  }
}

void pair_channels(const KeyChunk& key, int64_t padded, const Sizes& n) {
  for (int64_t r = 0; r < padded / kTileRows; ++r)
    for (int64_t d = 0; d < n.depth; ++d) {
      const Bf16* from = key.k_rows + (r * n.depth + d) * kTileHalves;
      Bf16* to = key.k_pairs + (d * kBlocks + r) * kTileHalves;
      I32x16 rows[16];
      for (int i = 0; i < 16; ++i) rows[i] = load_dwords(from + i * 32);
      transpose(rows);
      for (int i = 0; i < 16; ++i) store_dwords(to + i * 32, rows[i]);
    }
}

void turn_columns(const KeyChunk& key, int64_t padded, const Sizes& n) {
  for (int64_t kt = 0; kt < n.key_tiles; ++kt)
    for (int64_t half = 0; half < padded / kHalf; ++half) {
      const Bf16* first = key.k_rows + (2 * half * n.depth + kt / 2) * kTileHalves + kt % 2 * 16;
      const Bf16* second = first + n.depth * kTileHalves;
      Bf16* to = key.k_columns + (kt * 2 + half) * kTileHalves;
      I32x16 rows[16];
      for (int p = 0; p < 16; ++p) rows[p] = load_u16(first + p * 32) | shift_left<16>(load_u16(second + p * 32));
      transpose(rows);
      for (int i = 0; i < 16; ++i) store_dwords(to + i * 32, rows[i]);
    }
}

// k_i.k_j and q_i.k_j, in blocks of 32 x 32 tokens on and below the diagonal.
void multiply_keys(const KeyChunk& key, const Bf16* rows, float* products, int64_t padded, const Sizes& n) {
  for (int64_t i = 0; i < padded / kTileRows; i += 2)
    for (int64_t j = 0; j <= i; j += 2) {
      float* c = products + (i * kBlocks + j) * kTileFloats;
      const TileBlock block = {{rows + i * n.depth * kTileHalves, rows + (i + 1) * n.depth * kTileHalves},
                               {key.k_pairs + j * kTileHalves, key.k_pairs + (j + 1) * kTileHalves},
                               {{c, c + kTileFloats}, {c + kBlocks * kTileFloats, c + (kBlocks + 1) * kTileFloats}}};
      tile_block<false>(block, n.depth, kTileHalves, kBlocks * kTileHalves);
    }
}

void take_norms(const Call& call, const KeyChunk& key, int64_t padded, const Sizes& n) {
  for (int64_t i = 0; i < kChunk; ++i) {
    key.k_norm[i] = 1;
    key.q_norm[i] = call.scale;
  }
  if (!call.l2norm) return;
  for (int64_t i = 0; i < padded; ++i) {
    F32x16 sum = zero();
    const Bf16* row = key.q_rows + i / kTileRows * n.depth * kTileHalves + i % kTileRows * 32;
    for (int64_t d = 0; d < n.depth; ++d) {
      const I32x16 pairs = load_dwords(row + d * kTileHalves);
      sum = fma(low_half(pairs), low_half(pairs), sum);
      sum = fma(high_half(pairs), high_half(pairs), sum);
    }
    key.q_norm[i] = call.scale * inverse_norm(reduce_add(sum), call.eps);
    const float* diagonal = key.kk + i / kTileRows * (kBlocks + 1) * kTileFloats + i % kTileRows * 17;
    key.k_norm[i] = inverse_norm(*diagonal, call.eps);
  }
}

void prepare_keys(const Call& call, const KeyChunk& key, int64_t head, int64_t token, int64_t tokens, int64_t padded,
                  const Sizes& n) {
  gather_rows(call.k, head, token, tokens, padded, n, key.k_rows);
  gather_rows(call.q, head, token, tokens, padded, n, key.q_rows);
  pair_channels(key, padded, n);
  turn_columns(key, padded, n);
  multiply_keys(key, key.k_rows, key.kk, padded, n);
  multiply_keys(key, key.q_rows, key.qk, padded, n);
  take_norms(call, key, padded, n);
}

// --- one value head: gates and the triangle ----------------------------------------------------------------------------

void prepare_gates(const Call& call, const KeyChunk& key, GateChunk& gate, int64_t head, int64_t token, int64_t tokens) {
  float sum = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (i < tokens) sum += *at<float>(call.g, token + i, head);
    gate.cum[i] = sum;
    gate.beta[i] = i < tokens ? read_beta(call, token + i, head) : 0;
  }
  gate.decay = exp(splat(sum)).p[0][0];
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    const F32x16 cum = load(gate.cum + i), decayed = exp(cum), k_norm = load(key.k_norm + i);
    store(gate.residual + i, load(gate.beta + i) * decayed * k_norm);
    store(gate.readout + i, decayed * load(key.q_norm + i));
    store(gate.writing + i, exp(splat(sum) - cum) * k_norm);
  }
}

// Sixteen rows of A and M: fp32 where the inversion reads A, bf16 tiles where products do.
template <int kBlock>
void fill_rows(const KeyChunk& key, const GateChunk& gate) {
  const I32x16 lane = lane_numbers();
  const float start = kBlock ? gate.cum[kBlock * kTileRows - 1] : 0;
  const F32x16 cum = load(gate.cum + kBlock * kTileRows), k_norm = load(key.k_norm + kBlock * kTileRows);
  F32x16 column[kBlocks];
#pragma GCC unroll 4
  for (int j = 0; j < kBlock; ++j)
    column[j] = exp(splat(start) - load(gate.cum + j * kTileRows)) * load(key.k_norm + j * kTileRows);
  float from_start[kLanes];
  store(from_start, exp(cum - splat(start)));
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t token = kBlock * kTileRows + i;
    const F32x16 of_k = splat(gate.beta[token] * key.k_norm[token]), of_q = splat(key.q_norm[token]);
    const float* kk = key.kk + kBlock * kBlocks * kTileFloats + i * kTileRows;
    const float* qk = key.qk + kBlock * kBlocks * kTileFloats + i * kTileRows;
    F32x16 a[kBlocks], m[kBlocks];
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      if (j > kBlock) {
        a[j] = m[j] = zero();
        continue;
      }
      const F32x16 factor =
          j < kBlock ? column[j] * splat(from_start[i]) : exp(splat(gate.cum[token]) - cum) * k_norm;
      a[j] = load(kk + j * kTileFloats) * factor * of_k;
      m[j] = load(qk + j * kTileFloats) * factor * of_q;
    }
    m[kBlock] = select(less(lane, splat_int(i + 1)), m[kBlock], zero());
    store(gate.diagonal + kBlock * kTileFloats + i * kTileRows, select(less(lane, splat_int(i)), a[kBlock], zero()));
    if constexpr (kBlock % 2) store(gate.below + kBlock / 2 * kTileFloats + i * kTileRows, a[kBlock - 1]);
    if constexpr (kBlock >= 2) store_dwords(gate.coupling + (kBlock - 2) * kTileHalves + i * 32, pack_pairs(a[0], a[1]));
    store_dwords(gate.attend + kBlock * 2 * kTileHalves + i * 32, pack_pairs(m[0], m[1]));
    if constexpr (kBlock >= 2) store_dwords(gate.attend + (kBlock * 2 + 1) * kTileHalves + i * 32, pack_pairs(m[2], m[3]));
  }
}

void fill_triangle(const KeyChunk& key, const GateChunk& gate, int64_t halves) {
  fill_rows<0>(key, gate);
  fill_rows<1>(key, gate);
  if (halves == 1) return;
  fill_rows<2>(key, gate);
  fill_rows<3>(key, gate);
}

// (1 + lower triangle)^-1 of a 16 x 16 block, by substitution column after column.
KP_INLINE void invert_block(const float* lower, F32x16 (&x)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = select(less(lane_numbers(), splat_int(i + 1)) & ~less(lane_numbers(), splat_int(i)), splat(1), zero());
#pragma GCC unroll 16
  for (int j = 0; j < 15; ++j)
#pragma GCC unroll 16
    for (int i = j + 1; i < 16; ++i) x[i] = fma(splat(-lower[i * kTileRows + j]), x[j], x[i]);
}

// rows of `left` times the block `right`, 16 x 16.
KP_INLINE void multiply_block(const float* left, const F32x16 (&right)[16], F32x16 (&product)[16]) {
  for (int i = 0; i < 16; ++i) {
    F32x16 even = zero(), odd = zero();
#pragma GCC unroll 8
    for (int j = 0; j < 16; j += 2) {
      even = fma(splat(left[i * kTileRows + j]), right[j], even);
      odd = fma(splat(left[i * kTileRows + j + 1]), right[j + 1], odd);
    }
    product[i] = even + odd;
  }
}

void invert_half(const GateChunk& gate, int64_t half) {
  F32x16 upper[16], lower[16], product[16], corner[16];
  invert_block(gate.diagonal + 2 * half * kTileFloats, upper);
  invert_block(gate.diagonal + (2 * half + 1) * kTileFloats, lower);
  multiply_block(gate.below + half * kTileFloats, upper, product);
  float inverse[kTileFloats];
  for (int i = 0; i < 16; ++i) store(inverse + i * kTileRows, lower[i]);
  multiply_block(inverse, product, corner);
  Bf16* tiles = gate.inverse + half * 2 * kTileHalves;
  for (int i = 0; i < 16; ++i) {
    store_dwords(tiles + i * 32, pack_pairs(upper[i], zero()));
    store_dwords(tiles + kTileHalves + i * 32, pack_pairs(-corner[i], lower[i]));
  }
}

// --- one strip of columns ----------------------------------------------------------------------------------------------

// The bf16 copy of a strip of the state, as B tiles, and the chunk's decay multiplied into the fp32 original.
void convert_state(const StripChunk& strip, float* state, float decay, const Sizes& n) {
  for (int64_t kt = 0; kt < n.key_tiles; ++kt)
    for (int c = 0; c < 2; ++c) {
      float* from = state + (kt * 2 + c) * kTileFloats;
      Bf16* to = strip.state + (kt / 2 * 2 + c) * kTileHalves + kt % 2 * 8 * 32;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) {
        const F32x16 even = load(from + 2 * p * kTileRows), odd = load(from + (2 * p + 1) * kTileRows);
        store_dwords(to + p * 32, pack_pairs(even, odd));
        store(from + 2 * p * kTileRows, even * splat(decay));
        store(from + (2 * p + 1) * kTileRows, odd * splat(decay));
      }
    }
}

void multiply_state(const StripChunk& strip, const Bf16* rows, float* products, int64_t half, const Sizes& n) {
  const Bf16* a = rows + 2 * half * n.depth * kTileHalves;
  float* c = products + 4 * half * kTileFloats;
  const TileBlock block = {{a, a + n.depth * kTileHalves},
                           {strip.state, strip.state + kTileHalves},
                           {{c, c + kTileFloats}, {c + 2 * kTileFloats, c + 3 * kTileFloats}}};
  tile_block<false>(block, n.depth, kTileHalves, 2 * kTileHalves);
}

// The result of one tile depth, into strip.solved.
KP_INLINE void multiply_half(const StripChunk& strip, const Bf16* a, int64_t a_stride, const Bf16* b) {
  float* c = strip.solved;
  const TileBlock block = {
      {a, a + a_stride}, {b, b + kTileHalves}, {{c, c + kTileFloats}, {c + 2 * kTileFloats, c + 3 * kTileFloats}}};
  tile_block<false>(block, 1, 0, 0);
}

// beta (v - exp(G) k S), minus what the first half has written if kCoupled, as B tiles.
template <bool kCoupled>
KP_INLINE void form_right_side(const StripChunk& strip, const GateChunk& gate, const Bf16* v, int64_t v_stride, int64_t half) {
  for (int c = 0; c < 2; ++c)
    for (int p = 0; p < kTileRows; ++p) {
      F32x16 rows[2];
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        const int64_t i = half * kHalf + r * kTileRows + p;
        const float* k_state = strip.k_state + ((2 * half + r) * 2 + c) * kTileFloats + p * kTileRows;
        const F32x16 values = load(v + i * v_stride + c * kLanes);
        rows[r] = values * splat(gate.beta[i]) - load(k_state) * splat(gate.residual[i]);
        if constexpr (kCoupled) rows[r] = rows[r] - load(strip.solved + (2 * r + c) * kTileFloats + p * kTileRows);
      }
      store_dwords(strip.right_side + c * kTileHalves + p * 32, pack_pairs(rows[0], rows[1]));
    }
}

// w as B tiles: for this chunk's outputs, and scaled for the new state.
KP_INLINE void keep_written(const StripChunk& strip, const GateChunk& gate, int64_t half) {
  for (int c = 0; c < 2; ++c) {
    Bf16* written = strip.written + (half * 2 + c) * kTileHalves;
    Bf16* carried = strip.carried + (half * 2 + c) * kTileHalves;
    for (int p = 0; p < kTileRows; ++p) {
      const int64_t i = half * kHalf + p;
      const F32x16 first = load(strip.solved + c * kTileFloats + p * kTileRows);
      const F32x16 second = load(strip.solved + (2 + c) * kTileFloats + p * kTileRows);
      store_dwords(written + p * 32, pack_pairs(first, second));
      store_dwords(carried + p * 32,
                   pack_pairs(first * splat(gate.writing[i]), second * splat(gate.writing[i + kTileRows])));
    }
  }
}

// o of one half: the product with this chunk's w joins what the state gave.
void read_out(const StripChunk& strip, const GateChunk& gate, int64_t half, int64_t tokens, int64_t columns, Bf16* out,
              int64_t out_stride) {
  const Bf16* a = gate.attend + 4 * half * kTileHalves;
  float* c = strip.solved;
  const TileBlock block = {{a, a + 2 * kTileHalves},
                           {strip.written, strip.written + kTileHalves},
                           {{c, c + kTileFloats}, {c + 2 * kTileFloats, c + 3 * kTileFloats}}};
  tile_block<false>(block, half + 1, kTileHalves, 2 * kTileHalves);
  for (int64_t i = half * kHalf; i < smaller(tokens, (half + 1) * kHalf); ++i) {
    const int64_t row = i % kTileRows * kTileRows, r = i % kHalf / kTileRows;
    F32x16 o[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j)
      o[j] = fma(load(strip.q_state + ((2 * half + r) * 2 + j) * kTileFloats + row), splat(gate.readout[i]),
                 load(c + (2 * r + j) * kTileFloats + row));
    const I32x16 rounded = pack_row(o[0], o[1]);
    Bf16* to = out + i * out_stride;
    if (columns == kStrip && (reinterpret_cast<intptr_t>(to) & 63) == 0)
      stream_line(to, &rounded);
    else
      __builtin_memcpy(to, &rounded, columns * sizeof(Bf16));
  }
}

void update_state(const StripChunk& strip, const KeyChunk& key, float* state, int64_t halves, const Sizes& n) {
  for (int64_t kt = 0; kt < n.key_tiles; kt += 2) {
    const Bf16* a = key.k_columns + kt * 2 * kTileHalves;
    float* c = state + kt * 2 * kTileFloats;
    const TileBlock block = {{a, a + 2 * kTileHalves},
                             {strip.carried, strip.carried + kTileHalves},
                             {{c, c + kTileFloats}, {c + 2 * kTileFloats, c + 3 * kTileFloats}}};
    tile_block<true>(block, halves, kTileHalves, 2 * kTileHalves);
  }
}

struct StripTokens {
  const Bf16* v;
  int64_t v_stride;
  Bf16* out;
  int64_t out_stride;
  int64_t tokens, columns;
};

void run_strip(const TileScratch& s, float* state, const StripTokens& x, int64_t halves, const Sizes& n) {
  const StripChunk& strip = s.strip;
  const GateChunk& gate = s.gate;
  convert_state(strip, state, gate.decay, n);
  for (int64_t half = 0; half < halves; ++half) multiply_state(strip, s.key.k_rows, strip.k_state, half, n);
  form_right_side<false>(strip, gate, x.v, x.v_stride, 0);
  for (int64_t half = 0; half < halves; ++half) multiply_state(strip, s.key.q_rows, strip.q_state, half, n);
  multiply_half(strip, gate.inverse, kTileHalves, strip.right_side);
  keep_written(strip, gate, 0);
  if (halves > 1) {
    multiply_half(strip, gate.coupling, kTileHalves, strip.written);
    form_right_side<true>(strip, gate, x.v, x.v_stride, 1);
    multiply_half(strip, gate.inverse + 2 * kTileHalves, kTileHalves, strip.right_side);
    keep_written(strip, gate, 1);
  }
  update_state(strip, s.key, state, halves, n);
  for (int64_t half = 0; half < halves; ++half) read_out(strip, gate, half, x.tokens, x.columns, x.out, x.out_stride);
}

// v of a chunk and strip: in place where it is whole, else a copy padded with zeros.
StripTokens strip_tokens(const Call& call, const TileScratch& s, int64_t head, int64_t token, int64_t tokens, int64_t padded,
                         int64_t column) {
  const int64_t columns = smaller(call.v.sizes[2] - column, kStrip);
  StripTokens x = {at<Bf16>(call.v, token, head) + column, call.v.strides[0], at<Bf16>(call.out, token, head) + column,
                   call.out.strides[0], tokens, columns};
  if (tokens == padded && columns == kStrip) return x;
  __builtin_memset(s.values, 0, kChunk * kStrip * sizeof(Bf16));
  for (int64_t i = 0; i < tokens; ++i) __builtin_memcpy(s.values + i * kStrip, x.v + i * x.v_stride, columns * sizeof(Bf16));
  x.v = s.values;
  x.v_stride = kStrip;
  return x;
}

// --- a sequence ----------------------------------------------------------------------------------------------------------

void move_states(const Call& call, const Sequence& seq, const TileScratch& s, int64_t first_head, const Sizes& n, bool in) {
  for (int64_t h = 0; h < n.heads; ++h)
    for (int64_t tile = 0; tile < n.strips * n.key_tiles * 2; ++tile) {
      float* block = s.state + (h * n.strips * n.key_tiles * 2 + tile) * kTileFloats;
      const int64_t k0 = tile / 2 % n.key_tiles * 16, v0 = tile / 2 / n.key_tiles * kStrip + tile % 2 * 16;
      const bool inside = k0 < n.K && v0 < n.V;
      F32x16 rows[16] = {};
      if (in) {
        if (inside && seq.initial_slot >= 0) load_state_block(call, seq.initial_slot, first_head + h, k0, v0, rows);
        for (int i = 0; i < 16; ++i) store(block + i * kTileRows, rows[i]);
      } else if (inside) {
        for (int i = 0; i < 16; ++i) rows[i] = load(block + i * kTileRows);
        store_state_block(call, seq.final_slot, first_head + h, k0, v0, rows);
      }
    }
}

Sizes tile_sizes(const Call& call) {
  const int64_t K = call.q.sizes[2], V = call.v.sizes[2], depth = round_up(K, 32) / 32;
  return {K, V, depth, 2 * depth, round_up(V, kStrip) / kStrip, call.heads_per_key};
}

int64_t tile_scratch_bytes(const Call& call) {
  TileScratch scratch;
  return carve(scratch, tile_sizes(call), nullptr);
}

// One sequence and key head with all its value heads.
void run_tiles(const Call& call, const Sequence& seq, int64_t key_head, char* block) {
  const Sizes n = tile_sizes(call);
  TileScratch s;
  carve(s, n, block);
  const int64_t first_head = key_head * n.heads;
  move_states(call, seq, s, first_head, n, true);
  for (int64_t token = seq.begin; token < seq.end; token += kChunk) {
    const int64_t tokens = smaller(seq.end - token, kChunk), padded = round_up(tokens, kHalf);
    prepare_keys(call, s.key, key_head, token, tokens, padded, n);
    for (int64_t h = 0; h < n.heads; ++h) {
      prepare_gates(call, s.key, s.gate, first_head + h, token, tokens);
      fill_triangle(s.key, s.gate, padded / kHalf);
      for (int64_t half = 0; half < padded / kHalf; ++half) invert_half(s.gate, half);
      for (int64_t strip = 0; strip < n.strips; ++strip) {
        float* state = s.state + (h * n.strips + strip) * n.key_tiles * 2 * kTileFloats;
        run_strip(s, state, strip_tokens(call, s, first_head + h, token, tokens, padded, strip * kStrip), padded / kHalf, n);
      }
    }
  }
  move_states(call, seq, s, first_head, n, false);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
