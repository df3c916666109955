// One chunk of the gated delta rule on tiles: what its value heads share (rows, products and norms of keys),
// and what one value head adds (gates, the triangle and its inverse). delta_rule/chunk_tiles.h tells the
// whole.
#pragma once

#include "delta_rule/chunk_call.h"
#include "tiles/tile_block.h"
#include "tiles/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

// Tokens: 16 x 16 blocks of A grow with its square, passes over S fall with it.
constexpr int kChunk = 64;
constexpr int kHalf = 32;   // tokens of one tile depth
constexpr int kStrip = 32;  // value columns of one strip: two tiles
constexpr int kBlocks = kChunk / kTileRows;

struct Sizes {
  int64_t K, V;
  int64_t depth;      // tiles of 32 channels over K
  int64_t key_tiles;  // tiles of 16 channels over K, even
  int64_t strips;
  int64_t heads;  // value heads of one key head
  int64_t parts;  // bf16 numbers whose sum is an operand that was fp32: 2 in an accurate call
};

// One chunk of one key head, shared by its value heads.
struct KeyChunk {
  Bf16 *k_rows, *q_rows;   // [4][depth] A tiles: 16 tokens x 32 channels
  Bf16* k_pairs;           // [depth][4] B tiles: 16 channel pairs x 16 tokens
  Bf16* k_columns;         // [key_tiles][2] A tiles: 16 channels x 32 tokens
  float *kk, *qk;          // [2][2] C blocks of 2 x 2 tiles: k_i.k_j and q_i.k_j, on and below the diagonal
  float *k_norm, *q_norm;  // [64] 1/|k| and scale/|q|, or 1 and scale
};

// One chunk of one value head.
struct GateChunk {
  float *cum, *beta;        // [64] cumulative log decay
  float* residual;          // beta exp(G) / |k|: the factor of k S
  float* readout;           // exp(G) scale / |q|: the factor of q S
  float* writing;           // exp(G_last - G) / |k|: the factor of w in the new state
  float decay;              // exp(G_last)
  float *diagonal, *below;  // fp32 A: [4] diagonal blocks; [2] blocks below them inside a half
  Bf16* inverse;            // [parts][2 halves][2] A tiles of (1 + A)^-1
  Bf16* coupling;           // [parts][2] A tiles: the second half's rows of A, the first half's columns
  Bf16* attend;             // [parts][4][2] A tiles of M
};

// One strip of columns: its products with k, q and the solve, as C tiles, and operands of the next products,
// as B tiles.
struct StripChunk {
  float *k_state, *q_state;  // [4][2] C tiles
  float* solved;             // [2][2] C tiles
  Bf16* state;               // [parts][depth][2] B tiles
  Bf16* right_side;          // [parts][2] B tiles
  Bf16 *written, *carried;   // [parts][2 halves][2] B tiles: w, and w times `writing`
};

// From the first part of an operand to its second, in elements.
constexpr int64_t kInversePart = 4 * kTileHalves, kCouplingPart = 2 * kTileHalves,
                  kAttendPart = 8 * kTileHalves, kRightSidePart = 2 * kTileHalves,
                  kWrittenPart = 4 * kTileHalves;
KP_INLINE int64_t state_part(const Sizes& n) { return n.depth * 2 * kTileHalves; }

struct TileScratch {
  KeyChunk key;
  GateChunk gate;
  StripChunk strip;
  float* state;  // [heads][strips][key_tiles][2] C tiles
  Bf16* values;  // [64][32] a strip of v where it is cut at an edge
};

int64_t allocate(TileScratch& s, const Sizes& n, char* block) {
  BumpAllocator allocator{block};
  s.key.k_rows = allocator.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.q_rows = allocator.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.k_pairs = allocator.take<Bf16>(kBlocks * n.depth * kTileHalves);
  s.key.k_columns = allocator.take<Bf16>(n.key_tiles * 2 * kTileHalves);
  s.key.kk = allocator.take<float>(kBlocks * kBlocks * kTileFloats);
  s.key.qk = allocator.take<float>(kBlocks * kBlocks * kTileFloats);
  s.key.k_norm = allocator.take<float>(kChunk);
  s.key.q_norm = allocator.take<float>(kChunk);
  s.gate.cum = allocator.take<float>(kChunk);
  s.gate.beta = allocator.take<float>(kChunk);
  s.gate.residual = allocator.take<float>(kChunk);
  s.gate.readout = allocator.take<float>(kChunk);
  s.gate.writing = allocator.take<float>(kChunk);
  s.gate.diagonal = allocator.take<float>(kBlocks * kTileFloats);
  s.gate.below = allocator.take<float>(2 * kTileFloats);
  s.gate.inverse = allocator.take<Bf16>(n.parts * kInversePart);
  s.gate.coupling = allocator.take<Bf16>(n.parts * kCouplingPart);
  s.gate.attend = allocator.take<Bf16>(n.parts * kAttendPart);
  s.strip.k_state = allocator.take<float>(kBlocks * 2 * kTileFloats);
  s.strip.q_state = allocator.take<float>(kBlocks * 2 * kTileFloats);
  s.strip.solved = allocator.take<float>(4 * kTileFloats);
  s.strip.state = allocator.take<Bf16>(n.parts * state_part(n));
  s.strip.right_side = allocator.take<Bf16>(n.parts * kRightSidePart);
  s.strip.written = allocator.take<Bf16>(n.parts * kWrittenPart);
  s.strip.carried = allocator.take<Bf16>(n.parts * kWrittenPart);
  s.values = allocator.take<Bf16>(kChunk * kStrip);
  s.state = allocator.take<float>(n.heads * n.strips * n.key_tiles * 2 * kTileFloats);
  return allocator.used;
}

// --- one key head ------------------------------------------------------------------------------------------

// Copies up to 64 rows into A tiles, zero past the tokens and past K.
void gather_rows(const View& x, int64_t head, int64_t token, int64_t tokens, int64_t padded, const Sizes& n,
                 Bf16* tiles) {
  for (int64_t i = 0; i < padded; ++i) {
    Bf16* row = tiles + i / kTileRows * n.depth * kTileHalves + i % kTileRows * 32;
    const char* from = i < tokens ? at(x, token + i, head) : nullptr;
    for (int64_t d = 0; d < n.depth; ++d, row += kTileHalves) {
      const int64_t bytes = from ? least(n.K - d * 32, 32) * 2 : 0;
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
      for (int p = 0; p < 16; ++p)
        rows[p] = load_u16(first + p * 32) | shift_left<16>(load_u16(second + p * 32));
      transpose(rows);
      for (int i = 0; i < 16; ++i) store_dwords(to + i * 32, rows[i]);
    }
}

// Where the tile of row block i and column block j lies among the products of keys.
KP_INLINE int64_t product_tile(int64_t i, int64_t j) {
  return (i / 2 * 8 + j / 2 * 4 + i % 2 * 2 + j % 2) * kTileFloats;
}

// Two adjacent tiles, and those of the second parts behind them.
struct Operand {
  DenseTiles tiles;
  int64_t part_stride;  // in bytes; 0 where there is one part
  KP_INLINE TilePlace place(int tile, int64_t step, bool second) const {
    const TilePlace first = tiles(tile, step);
    return {static_cast<const char*>(first.data) + (second ? part_stride : 0), first.stride};
  }
};

// Strides in elements from one tile to the other, to those of the next 32 of the depth, and to the second
// part.
KP_INLINE Operand operand(const Bf16* tiles, int64_t tile_stride, int64_t step_stride,
                          int64_t part_stride = 0) {
  return {{tiles, tile_stride * 2, step_stride * 2}, part_stride * 2};
}

// sums (+)= a b, in a block of 2 x 2 tiles one after the other. Of operands with two parts the first ones are
// multiplied (1 term), then a's first with b's second (2), then a's second with b's first (3). The second
// ones together are below what two parts leave of a number.
template <int kTerms = 1>
KP_INLINE void multiply(const Operand& a, const Operand& b, int64_t steps, float* sums, bool add = false) {
  const BlockSums block{sums};
  const BlockSums* from = add ? &block : nullptr;
  if constexpr (kTerms == 1) {
    block_product<2, 2>({}, a.tiles, b.tiles, steps, from, block);
  } else {
    const auto within = [=](int64_t s) KP_LAMBDA_INLINE {
      return s < steps ? s : s < 2 * steps ? s - steps : s - 2 * steps;
    };
    const auto left = [=](int i, int64_t s)
                          KP_LAMBDA_INLINE { return a.place(i, within(s), s >= 2 * steps); };
    const auto right = [=](int j, int64_t s)
                           KP_LAMBDA_INLINE { return b.place(j, within(s), s >= steps && s < 2 * steps); };
    block_product<2, 2>({}, left, right, kTerms * steps, from, block);
  }
}

// The pairs of parts that are multiplied, of two operands that were fp32.
template <int kParts>
constexpr int kPartPairs = kParts == 2 ? 3 : 1;

// Two fp32 rows as a row of a tile; its second part, what the rounding left, goes `part_stride` elements on.
template <int kParts>
KP_INLINE void store_pairs(Bf16* to, int64_t part_stride, F32x16 low, F32x16 high) {
  const I32x16 pairs = pack_pairs(low, high);
  store_dwords(to, pairs);
  if constexpr (kParts == 2)
    store_dwords(to + part_stride, pack_pairs(low - low_half(pairs), high - high_half(pairs)));
}

// k_i.k_j and q_i.k_j, in blocks of 32 x 32 tokens on and below the diagonal.
void multiply_keys(const KeyChunk& key, const Bf16* rows, float* products, int64_t padded, const Sizes& n) {
  const int64_t row_block = n.depth * kTileHalves;
  for (int64_t i = 0; i < padded / kTileRows; i += 2)
    for (int64_t j = 0; j <= i; j += 2) {
      multiply(operand(rows + i * row_block, row_block, kTileHalves),
               operand(key.k_pairs + j * kTileHalves, kTileHalves, kBlocks * kTileHalves), n.depth,
               products + product_tile(i, j));
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
    const float* diagonal = key.kk + product_tile(i / kTileRows, i / kTileRows) + i % kTileRows * 17;
    key.k_norm[i] = inverse_norm(*diagonal, call.eps);
  }
}

void prepare_keys(const Call& call, const KeyChunk& key, int64_t head, int64_t token, int64_t tokens,
                  int64_t padded, const Sizes& n) {
  gather_rows(call.k, head, token, tokens, padded, n, key.k_rows);
  gather_rows(call.q, head, token, tokens, padded, n, key.q_rows);
  pair_channels(key, padded, n);
  turn_columns(key, padded, n);
  multiply_keys(key, key.k_rows, key.kk, padded, n);
  multiply_keys(key, key.q_rows, key.qk, padded, n);
  take_norms(call, key, padded, n);
}

// --- one value head: gates and the triangle ----------------------------------------------------------------

// Lower ones count as this: its exp is 0 even after exp(1) for each other token of a chunk, and the sums that it
// enters keep the low bits of what later tokens add.
constexpr float kLeastDecay = -256;

void prepare_gates(const Call& call, const KeyChunk& key, GateChunk& gate, int64_t head, int64_t token,
                   int64_t tokens) {
  float sum = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (i < tokens) sum += __builtin_fmaxf(*at<float>(call.g, token + i, head), kLeastDecay);
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
template <int kBlock, int kParts>
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
    F32x16 a[kBlocks], m[kBlocks];
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      if (j > kBlock) {
        a[j] = m[j] = zero();
        continue;
      }
      const F32x16 factor =
          j < kBlock ? column[j] * splat(from_start[i]) : exp(splat(gate.cum[token]) - cum) * k_norm;
      const int64_t row = product_tile(kBlock, j) + i * kTileRows;
      a[j] = load(key.kk + row) * factor * of_k;
      m[j] = load(key.qk + row) * factor * of_q;
    }
    m[kBlock] = select(less(lane, splat_int(i + 1)), m[kBlock], zero());
    store(gate.diagonal + kBlock * kTileFloats + i * kTileRows,
          select(less(lane, splat_int(i)), a[kBlock], zero()));
    if constexpr (kBlock % 2) store(gate.below + kBlock / 2 * kTileFloats + i * kTileRows, a[kBlock - 1]);
    if constexpr (kBlock >= 2)
      store_pairs<kParts>(gate.coupling + (kBlock - 2) * kTileHalves + i * 32, kCouplingPart, a[0], a[1]);
    store_pairs<kParts>(gate.attend + kBlock * 2 * kTileHalves + i * 32, kAttendPart, m[0], m[1]);
    if constexpr (kBlock >= 2)
      store_pairs<kParts>(gate.attend + (kBlock * 2 + 1) * kTileHalves + i * 32, kAttendPart, m[2], m[3]);
  }
}

template <int kParts>
void fill_triangle(const KeyChunk& key, const GateChunk& gate, int64_t halves) {
  fill_rows<0, kParts>(key, gate);
  fill_rows<1, kParts>(key, gate);
  if (halves == 1) return;
  fill_rows<2, kParts>(key, gate);
  fill_rows<3, kParts>(key, gate);
}

// (1 + lower triangle)^-1 of a 16 x 16 block, by substitution column after column.
KP_INLINE void invert_block(const float* lower, F32x16 (&x)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    x[i] = select(less(lane_numbers(), splat_int(i + 1)) & ~less(lane_numbers(), splat_int(i)), splat(1),
                  zero());
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

template <int kParts>
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
    store_pairs<kParts>(tiles + i * 32, kInversePart, upper[i], zero());
    store_pairs<kParts>(tiles + kTileHalves + i * 32, kInversePart, -corner[i], lower[i]);
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
