// Loads of float8 elements, the dtypes that only a cache may have.
#pragma once

#include "simd/vec_memory.h"

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

// Seven magnitude bits moved to a float's place are too small by 2^120; a subnormal's three bits count
// eighths of 2^-6.
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
KP_INLINE F32x16 load(const F8e4m3* from, int lanes) {
  return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from);
}
KP_INLINE F32x16 load(const F8e5m2* from, int lanes) {
  return lanes < kLanes ? load_byte_lanes(from, lanes) : load(from);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
