// Products of bf16 tiles in blocks: kDown tiles of A, one below the other, times kAcross tiles of B side by side.
//
//   TileScope scope;                                      // inside the parallel loop's body
//   block_product<2, 2>({}, a, b, steps, nullptr, sums);  // sums = A B over steps of 32 along k; + *from instead of nullptr
//
// A tile of A is 16 rows of 32 bf16 along k; a tile of B holds k in pairs: row p, column n has B[2p][n], B[2p+1][n]. Where they
// lie is up to the caller: a(i, step) and b(j, step) give a TilePlace. In a block of 2 x 2 two loads feed two products, so that
// operands in L1 reach 0.8-0.9 of the tiles' peak; every shape with fewer products a load costs a quarter more.
//
// On tiles the sums of a block stay in tiles 0-3, operands pass through 4-7. The avx512_bf16 tier multiplies with VDPBF16PS
// instead and keeps the sums of up to eight rows by two tiles in sixteen registers.
#pragma once

#include <utility>

#include "common/tile.h"

#if defined(KP_TIER_AVX512_BF16)
#include <immintrin.h>
#endif

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_TIER_AMX) || defined(KP_TIER_AVX512_BF16) || defined(KP_TIER_AMX_EMULATED)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif

// Where a tile lies: its first row, and the bytes from row to row.
struct TilePlace {
  const void* data;
  int64_t stride;
};

// Tiles of 1 KiB, rows of 64 bytes: `apart` bytes between those of a block, `step` bytes to those of the next 32 k.
struct DenseTiles {
  const void* first;
  int64_t apart, step;
  KP_INLINE TilePlace operator()(int tile, int64_t s) const {
    return {static_cast<const char*>(first) + tile * apart + s * step, 64};
  }
};

// The sums of a block: tile (i, j) lies at corner + i * down + j * across floats, its rows `stride` bytes apart.
struct BlockSums {
  float* corner;
  int64_t down = 512, across = 256;
  int64_t stride = 64;
  KP_INLINE float* tile(int i, int j) const { return corner + i * down + j * across; }
};

// Rows of A and of the sums, columns of B and of the sums; both up to 16.
struct TileShape {
  int rows = 16, columns = 16;
};

// Calls body(std::integral_constant<int, i>) for i in 0..n-1.
template <int n, class Body>
KP_INLINE void for_each_tile(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) KP_LAMBDA_INLINE { (body(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, n>());
}

#if !defined(KP_TIER_AVX512_BF16)

// Configures this thread's tiles for as long as it lives: 0.05 us. One at a time in a thread.
struct TileScope {
  KP_INLINE explicit TileScope(TileShape shape = {}) {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
      if (t < 6) shapes.rows[t] = static_cast<uint8_t>(shape.rows);
      if (t < 4 || t > 5) shapes.row_bytes[t] = static_cast<uint16_t>(4 * shape.columns);
    }
    tile_configure(shapes);
  }
  KP_INLINE ~TileScope() { tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

template <int kTile>
KP_INLINE void tile_load(TilePlace place) {
  tile_load<kTile>(place.data, place.stride);
}

constexpr int kBlockPasses = 1;

template <int kDown, int kAcross, class A, class B, class Between>
KP_INLINE void block_product(TileShape, const A& a, const B& b, int64_t steps, const BlockSums* from, const BlockSums& to,
                             const Between& between) {
  static_assert(kDown * kAcross <= 4);
  for_each_tile<kDown * kAcross>([&](auto t) KP_LAMBDA_INLINE {
    if (from)
      tile_load<t>(from->tile(t / kAcross, t % kAcross), from->stride);
    else
      tile_zero<t>();
  });
  for (int64_t s = 0; s < steps; ++s) {
    between(s, 0);
    for_each_tile<kDown>([&](auto i) KP_LAMBDA_INLINE {
      constexpr int kA = 4 + i % 2;
      if constexpr (i > 0) tile_load<kA>(a(i, s));
      for_each_tile<kAcross>([&](auto j) KP_LAMBDA_INLINE {
        constexpr int kB = 6 + j % 2;
        if constexpr (i == 0) tile_load<kB>(b(j, s));
        if constexpr (i == 0 && j == 0) tile_load<kA>(a(i, s));
        tile_bf16<i * kAcross + j, kA, kB>();
      });
    });
  }
  for_each_tile<kDown * kAcross>([&](auto t) KP_LAMBDA_INLINE { tile_store<t>(to.tile(t / kAcross, t % kAcross), to.stride); });
}

#else

struct TileScope {  // no state: registers hold what tiles would
  KP_INLINE explicit TileScope(TileShape = {}) {}
};

constexpr int kSumRegisters = 16;  // half of all; enough chains for the latency of two products a cycle
constexpr int kBlockPasses = 4;

// kRows rows from row `row` of tile i of A times kColumns tiles of B, from tile j on.
template <int kRows, int kColumns, class A, class B, class Between>
KP_NOINLINE void multiply_rows(int i, int row, int j, __mmask16 columns, const A& a, const B& b, int64_t steps,
                               const BlockSums* from, const BlockSums& to, const Between& between) {
  __m512 sums[kRows][kColumns];
  const auto place = [&](const BlockSums& block, int r, int c) KP_LAMBDA_INLINE {
    return reinterpret_cast<char*>(block.tile(i, j + c)) + (row + r) * block.stride;
  };
  const int pass = 2 * i + row / 8;
  _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) _Pragma("GCC unroll 2") for (int c = 0; c < kColumns; ++c)
      sums[r][c] = from ? _mm512_maskz_loadu_ps(columns, place(*from, r, c)) : _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; ++s) {
    between(s, pass);
    const TilePlace left = a(i, s);
    TilePlace right[kColumns];
    _Pragma("GCC unroll 2") for (int c = 0; c < kColumns; ++c) right[c] = b(j + c, s);
    const char* pairs = static_cast<const char*>(left.data) + row * left.stride;
    for (int k = 0; k < 16; ++k) {
      __m512bh column[kColumns];
      _Pragma("GCC unroll 2") for (int c = 0; c < kColumns; ++c) column[c] =
          (__m512bh)_mm512_maskz_loadu_epi32(columns, static_cast<const char*>(right[c].data) + k * right[c].stride);
      _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) {
        int pair;
        __builtin_memcpy(&pair, pairs + r * left.stride + 4 * k, sizeof pair);
        const __m512bh spread = (__m512bh)_mm512_set1_epi32(pair);
        _Pragma("GCC unroll 2") for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], spread, column[c]);
      }
    }
  }
  _Pragma("GCC unroll 16") for (int r = 0; r < kRows; ++r) _Pragma("GCC unroll 2") for (int c = 0; c < kColumns; ++c)
      _mm512_mask_storeu_ps(place(to, r, c), columns, sums[r][c]);
}

// One tile of A times kColumns tiles of B, in runs of rows that registers can hold.
template <int kColumns, class A, class B, class Between>
KP_INLINE void multiply_tile(TileShape shape, int i, int j, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to, const Between& between) {
  constexpr int kRunRows = kSumRegisters / kColumns;
  const auto columns = static_cast<__mmask16>((1u << shape.columns) - 1);
  int row = 0;
  for (; row + kRunRows <= shape.rows; row += kRunRows)
    multiply_rows<kRunRows, kColumns>(i, row, j, columns, a, b, steps, from, to, between);
  if (kColumns == 1 && shape.rows & 8) multiply_rows<8, 1>(i, row, j, columns, a, b, steps, from, to, between), row += 8;
  if (shape.rows & 4) multiply_rows<4, kColumns>(i, row, j, columns, a, b, steps, from, to, between), row += 4;
  if (shape.rows & 2) multiply_rows<2, kColumns>(i, row, j, columns, a, b, steps, from, to, between), row += 2;
  if (shape.rows & 1) multiply_rows<1, kColumns>(i, row, j, columns, a, b, steps, from, to, between);
}

template <int kDown, int kAcross, class A, class B, class Between>
KP_INLINE void block_product(TileShape shape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to, const Between& between) {
  constexpr int kColumns = kAcross % 2 ? 1 : 2;
  for (int i = 0; i < kDown; ++i)
    for (int j = 0; j < kAcross; j += kColumns) multiply_tile<kColumns>(shape, i, j, a, b, steps, from, to, between);
}

#endif

template <int kDown, int kAcross, class A, class B>
KP_INLINE void block_product(TileShape shape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to) {
  block_product<kDown, kAcross>(shape, a, b, steps, from, to, [](int64_t, int) {});
}

}  // namespace
}  // namespace kernelpair::KP_TIER
