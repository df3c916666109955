// A 16 x 16 transpose of 32-bit lanes in registers: what packs K rows into tile or vector order.
#pragma once

#include "simd/vec.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(__AVX512F__)

// Pairs of rows, then of pairs (inside each 128-bit quarter), then the quarters among four rows, then among
// all.
KP_INLINE void transpose(I32x16 (&rows)[16]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32((__m512i)rows[i].p[0], (__m512i)rows[i + 1].p[0]);
    a[i + 1] = _mm512_unpackhi_epi32((__m512i)rows[i].p[0], (__m512i)rows[i + 1].p[0]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].p[0] = (IntPiece)_mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    rows[i + 8].p[0] = (IntPiece)_mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    rows[i + 4].p[0] = (IntPiece)_mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    rows[i + 12].p[0] = (IntPiece)_mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
}

#elif defined(__AVX2__)

// Eight rows of eight lanes: pairs of rows, then of pairs (inside each half), then the halves.
KP_INLINE void transpose_eight(__m256i (&rows)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

// Four blocks, of which two change places.
KP_NOINLINE void transpose(I32x16 (&rows)[16]) {
  __m256i blocks[2][2][8];
  for (int down = 0; down < 2; ++down)
    for (int across = 0; across < 2; ++across) {
      auto& block = blocks[across][down];
      for (int i = 0; i < 8; ++i) block[i] = (__m256i)rows[8 * down + i].p[across];
      transpose_eight(block);
    }
  for (int down = 0; down < 2; ++down)
    for (int i = 0; i < 8; ++i)
      rows[8 * down + i] = {{(IntPiece)blocks[down][0][i], (IntPiece)blocks[down][1][i]}};
}

#else

KP_NOINLINE void transpose(I32x16 (&rows)[16]) {
  int32_t from[16][16], to[16][16];
  __builtin_memcpy(from, rows, sizeof from);
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 16; ++c) to[c][r] = from[r][c];
  __builtin_memcpy(rows, to, sizeof to);
}

#endif

KP_INLINE void transpose(F32x16 (&rows)[16]) {
  I32x16 bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = as_int(rows[i]);
  transpose(bits);
  for (int i = 0; i < 16; ++i) rows[i] = as_float(bits[i]);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
