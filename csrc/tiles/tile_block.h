// Products of tiles in blocks, of bf16 or bytes: kDown tiles of A, one below the other, times kAcross tiles of B side by
// side.
//
//   TileScope scope;                                      // inside the parallel loop's body
//   block_product<2, 2>({}, a, b, steps, nullptr, sums);  // sums = A B over steps of 32 along k; or + *from
//
// A tile of A is 16 rows of 32 bf16 along k; a tile of B holds k in pairs: row p, column n has B[2p][n],
// B[2p+1][n]. Of bytes (Int8Product, in the tiers with tiles alone) both have 64 along k, in quads; sums are
// int32 in the places of floats. Where they lie is up to the caller: a(i, step) and b(j, step) give a TilePlace. In a block of 2
// x 2 two loads feed two products, so that operands in L1 reach 0.8-0.9 of the tiles' peak; every shape with
// fewer products a load costs a quarter more.
//
// `between(step, pass, part)` runs before each of the kBlockParts of a step: a place for prefetches. Tiles take
// one pass over the operands of a block, and a step in one part; the dot products of the avx512_bf16 tier
// (dot_block.h) take block_passes(rows) over those of B, and a row of B at a time.
#pragma once

#include <utility>

#include "core/integers.h"
#include "simd/dtypes.h"
#include "tiles/tile.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_PRODUCTS_NONE)
constexpr bool kHasTiles = false;
#else
constexpr bool kHasTiles = true;
#endif
#if defined(KP_PRODUCTS_TILE_REGISTERS) || defined(KP_PRODUCTS_SOFT_TILES)
constexpr bool kHasByteTiles = true;
#else
constexpr bool kHasByteTiles = false;
#endif

// with_float of what is multiplied on vectors: every dtype, or all but bf16 where there are tiles for it.
template <class Body>
KP_INLINE void with_vector_float(Dtype dtype, const Body& body) {
  if constexpr (!kHasTiles)
    with_float(dtype, body);
  else if (dtype == Dtype::f16)
    body(F16{});
  else
    body(float{});
}

struct Bf16Product {
  template <int C, int A, int B>
  KP_INLINE static void add() {
    tile_bf16<C, A, B>();
  }
};
struct Int8Product {
  template <int C, int A, int B>
  KP_INLINE static void add() {
    tile_int8<C, A, B>();
  }
};

constexpr int kTileRows = 16;

// Where a tile lies: its first row, and the bytes from row to row.
struct TilePlace {
  const void* data;
  int64_t stride;
};

// Tiles of 1 KiB, rows of 64 bytes: strides in bytes between the tiles of a block, and to those of the next
// 32 k.
struct DenseTiles {
  const void* first;
  int64_t tile_stride, step_stride;
  KP_INLINE TilePlace operator()(int tile, int64_t s) const {
    return {static_cast<const char*>(first) + tile * tile_stride + s * step_stride, 64};
  }
};

// The sums of a block: tile (i, j) lies at corner + i * down_stride + j * across_stride floats, its rows
// `stride` bytes apart.
struct BlockSums {
  float* corner;
  int64_t down_stride = 512, across_stride = 256;
  int64_t stride = 64;
  KP_INLINE float* tile(int i, int j) const { return corner + i * down_stride + j * across_stride; }
};

// Rows of A and of the sums, columns of B and of the sums; both up to 16. Of a block's lowest tiles fewer rows may be
// wanted: dot products leave the others out.
struct TileShape {
  int rows = kTileRows, columns = 16, last_rows = rows;
};

struct NothingBetween {
  KP_INLINE void operator()(int64_t, int, int) const {}
};

// Calls body(std::integral_constant<int, i>) for i in 0..n-1.
template <int n, class Body>
KP_INLINE void for_each_tile(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) KP_LAMBDA_INLINE {
    (body(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// Calls body(std::integral_constant<int, n>) for an n of 1..kMost.
template <int kMost, class Body>
KP_INLINE void with_count(int64_t n, const Body& body) {
  for_each_tile<kMost>([&](auto i) KP_LAMBDA_INLINE {
    if (n == i + 1) body(std::integral_constant<int, i + 1>());
  });
}

}  // namespace
}  // namespace kernelpair::KP_TIER

#if defined(KP_PRODUCTS_DOTS)
#include "tiles/dot_block.h"
#else

namespace kernelpair::KP_TIER {
namespace {

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

constexpr int kBlockParts = 1;
KP_INLINE int64_t block_passes(int64_t rows) { return divide_up(rows, 32); }

// Sums in tiles 0-3, tiles of A pass through 4 and 5, those of B through 6 and 7.
template <int kDown, int kAcross, class Product = Bf16Product, class A, class B, class Between>
KP_INLINE void block_product(TileShape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to, const Between& between) {
  static_assert(kDown * kAcross <= 4);
  for_each_tile<kDown * kAcross>([&](auto t) KP_LAMBDA_INLINE {
    if (from)
      tile_load<t>(from->tile(t / kAcross, t % kAcross), from->stride);
    else
      tile_zero<t>();
  });
  for (int64_t s = 0; s < steps; ++s) {
    between(s, 0, 0);
    for_each_tile<kDown>([&](auto i) KP_LAMBDA_INLINE {
      constexpr int kA = 4 + i % 2;
      if constexpr (i > 0) tile_load<kA>(a(i, s));
      for_each_tile<kAcross>([&](auto j) KP_LAMBDA_INLINE {
        constexpr int kB = 6 + j % 2;
        if constexpr (i == 0) tile_load<kB>(b(j, s));
        if constexpr (i == 0 && j == 0) tile_load<kA>(a(i, s));
        Product::template add<i * kAcross + j, kA, kB>();
      });
    });
  }
  for_each_tile<kDown * kAcross>(
      [&](auto t) KP_LAMBDA_INLINE { tile_store<t>(to.tile(t / kAcross, t % kAcross), to.stride); });
}

}  // namespace
}  // namespace kernelpair::KP_TIER

#endif

namespace kernelpair::KP_TIER {
namespace {

template <int kDown, int kAcross, class A, class B>
KP_INLINE void block_product(TileShape shape, const A& a, const B& b, int64_t steps, const BlockSums* from,
                             const BlockSums& to) {
  block_product<kDown, kAcross>(shape, a, b, steps, from, to, NothingBetween{});
}

}  // namespace
}  // namespace kernelpair::KP_TIER
