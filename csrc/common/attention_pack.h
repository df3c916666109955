// Key and value rows, gathered by pointer, brought into the order in which the products read them.
//
//   scores   S = Q K^T   needs keys side by side: 16x16 transposes of 32-bit elements (a pair of bf16, or one float)
//   values   O += P V    tiles need pairs of keys interleaved, vectors take the rows as they are
//
// A null row is a key that does not exist: it packs as zeros, so that nothing but the caller's rows is ever read.
#pragma once

#include "common/vec.h"
#include "common/view.h"

namespace kernelpair {

struct F8e4m3 {
  uint8_t bits;
};
struct F8e5m2 {
  uint8_t bits;
};

}  // namespace kernelpair

namespace kernelpair::KP_TIER {
namespace {

// --- float8 --------------------------------------------------------------------------------------------------------

KP_INLINE I32x16 load_u8(const void* from) {
#if defined(__AVX512F__)
  return {{(IntPiece)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)))}};
#else
  uint8_t bytes[kLanes];
  int32_t wide[kLanes];
  __builtin_memcpy(bytes, from, sizeof bytes);
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = bytes[lane];
  I32x16 r;
  __builtin_memcpy(&r, wide, sizeof r);
  return r;
#endif
}

// Seven magnitude bits moved to a float's place are too small by 2^120; a subnormal's three bits count eighths of 2^-6.
KP_INLINE F32x16 load(const F8e4m3* from) {
  const I32x16 bits = load_u8(from), magnitude = bits & splat_int(0x7f);
  const F32x16 normal = as_float(shift_left<20>(magnitude) + splat_int(120 << 23));
  const F32x16 subnormal = to_float(magnitude) * splat(1.0f / 512);
  const I32x16 value = as_int(select(less(magnitude, splat_int(8)), subnormal, normal));
  const I32x16 number = select(less(magnitude, splat_int(0x7f)), value, splat_int(0x7fc00000));
  return as_float(number | shift_left<24>(bits & splat_int(0x80)));
}

// The upper byte of a half.
KP_INLINE F32x16 load(const F8e5m2* from) {
  F16 halves[kLanes];
  store_u16(halves, shift_left<8>(load_u8(from)));
  return load(halves);
}

// The first `lanes` elements, the others 0.
template <class T>
KP_INLINE F32x16 load_byte_lanes(const T* from, int lanes) {
  T buffer[kLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) buffer[lane] = from[lane];
  return load(buffer);
}
KP_INLINE F32x16 load(const F8e4m3* from, int lanes) { return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from); }
KP_INLINE F32x16 load(const F8e5m2* from, int lanes) { return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from); }

// --- transposes ----------------------------------------------------------------------------------------------------

// Sixteen vectors as the rows of a matrix become its columns.
KP_INLINE void transpose16(I32x16 (&rows)[16]) {
#if defined(__AVX512F__)
  __m512i a[16], b[16];
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) a[i] = (__m512i)rows[i].p[0];
  _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) {
    rows[i].p[0] = (IntPiece)_mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
    rows[i + 8].p[0] = (IntPiece)_mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
    rows[i + 4].p[0] = (IntPiece)_mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88);
    rows[i + 12].p[0] = (IntPiece)_mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
  }
#else
  int32_t from[16][16], to[16][16];
  __builtin_memcpy(from, rows, sizeof from);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[i][j] = from[j][i];
  __builtin_memcpy(rows, to, sizeof to);
#endif
}

// The first `bytes` of 64, the others 0; nothing past them is touched.
KP_INLINE I32x16 load_bytes(const char* from, int64_t bytes) {
  I32x16 r = {};
#if defined(__AVX512F__)
  if (bytes >= 64) return {{(IntPiece)_mm512_loadu_si512(from)}};
  r.p[0] = (IntPiece)_mm512_maskz_loadu_epi8((1ull << bytes) - 1, from);
#else
  __builtin_memcpy(&r, from, bytes < 64 ? bytes : 64);
#endif
  return r;
}

}  // namespace
}  // namespace kernelpair::KP_TIER
