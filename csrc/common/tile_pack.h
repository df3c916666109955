// From vectors to tile operands and back: pairs of fp32 rows rounded into the dwords of a bf16 tile, 16 x 16 dword
// transposes, and a block of two by two tile products. Tiles in memory are dense 1 KiB blocks.
#pragma once

#include "common/tile.h"
#include "common/vec.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileFloats = 256;  // an fp32 tile: 16 x 16
constexpr int kTileHalves = 512;  // a bf16 tile: 16 x 32
constexpr int kTileStride = 64;   // bytes from row to row

KP_INLINE I32x16 load_dwords(const void* from) {
  I32x16 r;
  KP_EACH_PIECE __builtin_memcpy(&r.p[i], static_cast<const char*>(from) + i * kVectorBytes, kVectorBytes);
  return r;
}

KP_INLINE void store_dwords(void* to, I32x16 a) {
  KP_EACH_PIECE __builtin_memcpy(static_cast<char*>(to) + i * kVectorBytes, &a.p[i], kVectorBytes);
}

// Lane n holds bf16(low[n]) in its lower and bf16(high[n]) in its upper half: two depths of one column of B, or of one row of A.
KP_INLINE I32x16 pack_pairs(F32x16 low, F32x16 high) {
#if defined(__AVX512BF16__)
  constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(high.p[0], low.p[0]);
  return {{(IntPiece)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves)}};
#else
  return bf16_bits(low) | shift_left<16>(bf16_bits(high));
#endif
}

// Thirty-two bf16 in order, `first` before `second`.
KP_INLINE I32x16 pack_row(F32x16 first, F32x16 second) {
#if defined(__AVX512BF16__)
  return {{(IntPiece)(__m512i)_mm512_cvtne2ps_pbh(second.p[0], first.p[0])}};
#else
  Bf16 row[2 * kLanes];
  store(row, first);
  store(row + kLanes, second);
  return load_dwords(row);
#endif
}

KP_INLINE F32x16 low_half(I32x16 pairs) { return as_float(shift_left<16>(pairs)); }
KP_INLINE F32x16 high_half(I32x16 pairs) { return as_float(pairs & splat_int(static_cast<int32_t>(0xffff0000u))); }

// rows[i] lane j becomes rows[j] lane i.
KP_INLINE void transpose(I32x16 (&rows)[16]) {
#if defined(__AVX512F__)
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i even = (__m512i)rows[2 * i].p[0], odd = (__m512i)rows[2 * i + 1].p[0];
    a[2 * i] = _mm512_unpacklo_epi32(even, odd);
    a[2 * i + 1] = _mm512_unpackhi_epi32(even, odd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      b[4 * i + 2 * j] = _mm512_unpacklo_epi64(a[4 * i + j], a[4 * i + 2 + j]);
      b[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(a[4 * i + j], a[4 * i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88), odd01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    rows[j].p[0] = (IntPiece)_mm512_shuffle_i32x4(even01, even23, 0x88);
    rows[4 + j].p[0] = (IntPiece)_mm512_shuffle_i32x4(odd01, odd23, 0x88);
    rows[8 + j].p[0] = (IntPiece)_mm512_shuffle_i32x4(even01, even23, 0xdd);
    rows[12 + j].p[0] = (IntPiece)_mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
#else
  int32_t from[16][16], to[16][16];
  __builtin_memcpy(from, rows, sizeof from);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[j][i] = from[i][j];
  __builtin_memcpy(rows, to, sizeof to);
#endif
}

// Four fp32 tiles C[i][j] (+)= sum over `steps` of A[i] B[j]; the operands of successive steps lie a stride apart (elements).
struct TileBlock {
  const Bf16* a[2];
  const Bf16* b[2];
  float* c[2][2];
};

template <bool kAccumulate>
KP_INLINE void tile_block(const TileBlock& t, int64_t steps, int64_t a_stride, int64_t b_stride) {
  if constexpr (kAccumulate) {
    tile_load<0>(t.c[0][0], kTileStride);
    tile_load<1>(t.c[0][1], kTileStride);
    tile_load<2>(t.c[1][0], kTileStride);
    tile_load<3>(t.c[1][1], kTileStride);
  } else {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    tile_load<4>(t.a[0] + s * a_stride, kTileStride);
    tile_load<6>(t.b[0] + s * b_stride, kTileStride);
    tile_bf16<0, 4, 6>();
    tile_load<7>(t.b[1] + s * b_stride, kTileStride);
    tile_bf16<1, 4, 7>();
    tile_load<5>(t.a[1] + s * a_stride, kTileStride);
    tile_bf16<2, 5, 6>();
    tile_bf16<3, 5, 7>();
  }
  tile_store<0>(t.c[0][0], kTileStride);
  tile_store<1>(t.c[0][1], kTileStride);
  tile_store<2>(t.c[1][0], kTileStride);
  tile_store<3>(t.c[1][1], kTileStride);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
