// Vectors and memory: loads and stores of F32x16 from elements of any dtype, whole or the first few, and
// streaming stores. Elements are float, Bf16 or F16; load and store convert (round to nearest even, NaN stays
// NaN).
#pragma once

#include "simd/vec.h"

namespace kernelpair {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

}  // namespace kernelpair

namespace kernelpair::KP_TIER {
namespace {

// Piece by piece: copied as a whole, more than one piece would go through the stack.
KP_INLINE F32x16 load(const float* from) {
  F32x16 r;
  KP_EACH_PIECE(__builtin_memcpy(&r.p[i], from + i * kPieceLanes, kVectorBytes));
  return r;
}

KP_INLINE void store(float* to, F32x16 a) {
  KP_EACH_PIECE(__builtin_memcpy(to + i * kPieceLanes, &a.p[i], kVectorBytes));
}

// Sixteen dwords of anything, by way of floats: gcc 12 takes a copy of a vector of integers through the
// stack.
KP_INLINE I32x16 load_dwords(const void* from) { return as_int(load(static_cast<const float*>(from))); }
KP_INLINE void store_dwords(void* to, I32x16 a) { store(static_cast<float*>(to), as_float(a)); }

// Sixteen 16-bit elements widened to 32 bits, and back by dropping the upper halves.
KP_INLINE I32x16 load_u16(const void* from) {
#if defined(__AVX512F__)  // gcc 12 converts by halves otherwise
  return {{(IntPiece)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)))}};
#else
  I32x16 r;
  KP_EACH_PIECE({
    ShortPiece narrow;
    __builtin_memcpy(&narrow, static_cast<const char*>(from) + i * sizeof narrow, sizeof narrow);
    r.p[i] = __builtin_convertvector(narrow, IntPiece);
  });
  return r;
#endif
}

KP_INLINE void store_u16(void* to, I32x16 a) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16((__m512i)a.p[0]));
#elif defined(__AVX2__)
  const I32x16 low = a & splat_int(0xffff);  // packed by lanes, so that quarters 1 and 2 change places
  const __m256i words = _mm256_packus_epi32((__m256i)low.p[0], (__m256i)low.p[1]);
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0)));
#else
  KP_EACH_PIECE({
    const ShortPiece narrow = __builtin_convertvector((UintPiece)a.p[i], ShortPiece);
    __builtin_memcpy(static_cast<char*>(to) + i * sizeof narrow, &narrow, sizeof narrow);
  });
#endif
}

KP_INLINE F32x16 load(const Bf16* from) { return as_float(shift_left<16>(load_u16(from))); }

// Rounded to nearest even: bf16 in the upper half of each lane, anything in the lower; where no lane is NaN.
KP_INLINE I32x16 bf16_upper_of_number(F32x16 a) {
  const I32x16 bits = as_int(a);
  return bits + splat_int(0x7fff) + (shift_right<16>(bits) & splat_int(1));
}
KP_SHORT_INLINE I32x16 bf16_upper(F32x16 a) {
  return select(unordered(a, a), as_int(a) | splat_int(0x400000), bf16_upper_of_number(a));
}
KP_INLINE I32x16 bf16_bits(F32x16 a) {
  return shift_right<16>(bf16_upper(a));
}  // the upper half of each lane is 0

KP_INLINE void store(Bf16* to, F32x16 a) {
#if defined(__AVX512BF16__)
  const __m256bh bits = _mm512_cvtneps_pbh(a.p[0]);
  __builtin_memcpy(to, &bits, sizeof bits);
#else
  store_u16(to, bf16_bits(a));
#endif
}

#if defined(__AVX512F__)

KP_INLINE F32x16 load(const F16* from) {
  return {{(FloatPiece)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}};
}
KP_INLINE void store(F16* to, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(a.p[0], _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__F16C__)

KP_INLINE F32x16 load(const F16* from) {
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_cvtph_ps(
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kPieceLanes))));
  return r;
}
KP_INLINE void store(F16* to, F32x16 a) {
  KP_EACH_PIECE(_mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * kPieceLanes),
                                 _mm256_cvtps_ph(a.p[i], _MM_FROUND_TO_NEAREST_INT)));
}

#else

// Shifted into a float's place a half is too small by 2^112, subnormals included; infinity and NaN need their
// exponent back.
KP_NOINLINE F32x16 load(const F16* from) {
  const I32x16 half = load_u16(from), magnitude = shift_left<13>(half & splat_int(0x7fff));
  const F32x16 scaled = as_float(magnitude) * as_float(splat_int((127 + 112) << 23));
  const Mask16 finite = less(magnitude, splat_int(0x7c00 << 13));
  const I32x16 bits = select(finite, as_int(scaled), magnitude | splat_int(0x7f800000));
  return as_float(bits | shift_left<16>(half & splat_int(0x8000)));
}

KP_NOINLINE I32x16 f16_bits(F32x16 a) {
  const I32x16 bits = as_int(a), sign = shift_right<16>(bits) & splat_int(0x8000);
  const I32x16 magnitude = bits & splat_int(INT32_MAX);
  const I32x16 odd = shift_right<13>(magnitude) & splat_int(1);
  const I32x16 normal = shift_right<13>(magnitude + splat_int(0xfff) + odd - splat_int(112 << 23));
  // Below 2^-14: adding 1/2 makes the unit of a float's last place that of a subnormal half, and rounds to
  // it.
  const I32x16 half_one = splat_int(126 << 23);
  const I32x16 subnormal = as_int(as_float(magnitude) + as_float(half_one)) - half_one;
  const I32x16 finite = select(less(magnitude, splat_int(113 << 23)), subnormal, normal);
  const I32x16 overflow =
      select(less(splat_int(0x7f800000), magnitude),
             splat_int(0x7e00) | (shift_right<13>(magnitude) & splat_int(0x1ff)), splat_int(0x7c00));
  return sign | select(less(magnitude, splat_int(0x477ff000)), finite, overflow);  // 65520 rounds to infinity
}
KP_INLINE void store(F16* to, F32x16 a) { store_u16(to, f16_bits(a)); }

#endif

// The first `lanes` elements; the other lanes load as 0, and nothing past them is touched.
#if defined(__AVX512F__)

KP_INLINE F32x16 load(const float* from, int lanes) {
  return {{(FloatPiece)_mm512_maskz_loadu_ps(first_lanes(lanes).bits, from)}};
}
KP_INLINE F32x16 load(const Bf16* from, int lanes) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(lanes).bits, from);
  return {{(FloatPiece)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))}};
}
KP_INLINE F32x16 load(const F16* from, int lanes) {
  return {{(FloatPiece)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(lanes).bits, from))}};
}
KP_INLINE void store(float* to, F32x16 a, int lanes) {
  _mm512_mask_storeu_ps(to, first_lanes(lanes).bits, a.p[0]);
}
KP_INLINE void store(Bf16* to, F32x16 a, int lanes) {
  __m256i bits;
  store(reinterpret_cast<Bf16*>(&bits), a);
  _mm256_mask_storeu_epi16(to, first_lanes(lanes).bits, bits);
}
KP_INLINE void store(F16* to, F32x16 a, int lanes) {
  _mm256_mask_storeu_epi16(to, first_lanes(lanes).bits, _mm512_cvtps_ph(a.p[0], _MM_FROUND_TO_NEAREST_INT));
}

#else

template <class T>
KP_NOINLINE F32x16 load_tail(const T* from, int lanes) {
  T buffer[kLanes] = {};
  __builtin_memcpy(buffer, from, lanes * sizeof(T));
  return load(buffer);
}
template <class T>
KP_NOINLINE void store_tail(T* to, F32x16 a, int lanes) {
  T buffer[kLanes];
  store(buffer, a);
  __builtin_memcpy(to, buffer, lanes * sizeof(T));
}
#if defined(__AVX2__)
KP_INLINE F32x16 load_tail(const float* from, int lanes) {
  const Mask16 live = first_lanes(lanes);
  F32x16 r;
  KP_EACH_PIECE(r.p[i] = (FloatPiece)_mm256_maskload_ps(from + i * kPieceLanes, (__m256i)live.p[i]));
  return r;
}
KP_INLINE void store_tail(float* to, F32x16 a, int lanes) {
  const Mask16 live = first_lanes(lanes);
  KP_EACH_PIECE(_mm256_maskstore_ps(to + i * kPieceLanes, (__m256i)live.p[i], (__m256)a.p[i]));
}
#endif
template <class T>
KP_INLINE F32x16 load(const T* from, int lanes) {
  return lanes == kLanes ? load(from) : load_tail(from, lanes);
}
template <class T>
KP_INLINE void store(T* to, F32x16 a, int lanes) {
  lanes == kLanes ? store(to, a) : store_tail(to, a, lanes);
}

#endif

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

// One element, converted.
KP_INLINE float load_one(const float* from) { return *from; }
template <class T>
KP_INLINE float load_one(const T* from) {
  T lanes[kLanes] = {*from};
  return load(lanes).p[0][0];
}
template <class T>
KP_INLINE void store_one(T* to, float a) {
  T lanes[kLanes];
  store(lanes, splat(a));
  *to = lanes[0];
}

// --- streaming: past the caches, for output too large to be read back from them ----------------------------

KP_INLINE void stream_line(void* to, const void* from) {  // 64 bytes, `to` aligned to 64
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  for (int i = 0; i < 2; ++i)
    _mm256_stream_si256(static_cast<__m256i*>(to) + i,
                        _mm256_loadu_si256(static_cast<const __m256i*>(from) + i));
#elif defined(__SSE2__)
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
#else
  __builtin_memcpy(to, from, 64);
#endif
}

KP_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// A copy whose whole cache lines stream; the caller ends with stream_fence().
KP_INLINE void stream_bytes(char* to, const char* from, int64_t bytes) {
  int64_t head = -reinterpret_cast<intptr_t>(to) & 63;
  if (head > bytes) head = bytes;
  __builtin_memcpy(to, from, head);
  int64_t i = head;
  for (; i + 64 <= bytes; i += 64) stream_line(to + i, from + i);
  __builtin_memcpy(to + i, from + i, bytes - i);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
