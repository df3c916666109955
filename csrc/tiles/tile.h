// Tile layer: eight tiles of up to 16 rows of 64 bytes, as in AMX palette 1. Hardware in the amx tier,
// software with the same bits in amx_emulated. Kernels multiply through tile_block.h, which the other tier
// with a bf16 product has in its own form.
//
//   tile_configure(shapes);
//   tile_zero<0>();
//   tile_load<4>(a, a_stride); tile_load<6>(b, 64);   // strides in bytes
//   tile_bf16<0, 4, 6>();                             // C0 += A4 B6
//   tile_store<0>(c, 64);
//   tile_release();
//
// A bf16 product reads A as rows of 32 bf16 along k, and B with k in pairs: row p, column n holds B[2p][n],
// B[2p+1][n]. An int8 product has 64 bytes along k, in quads, and exact sums in int32.
#pragma once

#include "tiles/soft_tile.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_PRODUCTS_TILE_REGISTERS)

// Volatile and clobbering memory: stores that fill the shapes or an operand must not move past, or be
// dropped.
KP_INLINE void tile_configure(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
}
KP_INLINE void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
KP_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

template <int T>
KP_INLINE void tile_load(const void* data, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(data), "r"(stride) : "memory");
}

template <int T>
KP_INLINE void tile_store(void* data, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(data), "r"(stride) : "memory");
}

template <int C, int A, int B>
KP_INLINE void tile_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

template <int C, int A, int B>
KP_INLINE void tile_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

// Tiers without tiles compile the same templates, never run them.
KP_INLINE void tile_configure(const TileShapes& shapes) { soft_tile::configure(shapes); }
KP_INLINE void tile_release() { soft_tile::release(); }

template <int T>
KP_INLINE void tile_zero() {
  soft_tile::zero(T);
}

template <int T>
KP_INLINE void tile_load(const void* data, int64_t stride) {
  soft_tile::load(T, data, stride);
}

template <int T>
KP_INLINE void tile_store(void* data, int64_t stride) {
  soft_tile::store(T, data, stride);
}

template <int C, int A, int B>
KP_INLINE void tile_bf16() {
  soft_tile::bf16_product(C, A, B);
}

template <int C, int A, int B>
KP_INLINE void tile_int8() {
  soft_tile::int8_product(C, A, B);
}

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
