// The intrinsics of AVX512 that csrc takes, carried out with AVX2, so that the tiers of AVX512 run on a CPU without it
// (`make emulated`): simd/emulated_names.h gives them the names. Each function does what Intel's documentation of its intrinsic
// says; one that is missing is an error of the compiler, "target specific option mismatch".
//
// A masked load or store touches what its mask names and nothing else, and one that demands an aligned address traps at
// another. rcp14() rounds to the 14 bits that the instruction promises. dpbf16() treats subnormal numbers as zero, as the
// instruction does.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace kernelpair::emulated {
namespace {

#define KP_EMULATED_INLINE inline __attribute__((always_inline))

template <class E>
struct LanesOf {
  typedef E type __attribute__((vector_size(64)));
};
template <class E>
using Lanes = typename LanesOf<E>::type;

template <class To, class From>
KP_EMULATED_INLINE To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;
}

KP_EMULATED_INLINE void check_aligned(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 64 != 0) __builtin_trap();
}

// --- halves: what AVX2 has an instruction for ----------------------------------------------------------------------------

KP_EMULATED_INLINE __m256 low(__m512 a) { return __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7); }
KP_EMULATED_INLINE __m256 high(__m512 a) {
  return __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
}
KP_EMULATED_INLINE __m256i low(__m512i a) { return __builtin_shufflevector(a, a, 0, 1, 2, 3); }
KP_EMULATED_INLINE __m256i high(__m512i a) { return __builtin_shufflevector(a, a, 4, 5, 6, 7); }
KP_EMULATED_INLINE __m512 joined(__m256 low, __m256 high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
KP_EMULATED_INLINE __m512i joined(__m256i low, __m256i high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

KP_EMULATED_INLINE __m256d low(__m512d a) { return (__m256d)low((__m512i)a); }
KP_EMULATED_INLINE __m256d high(__m512d a) { return (__m256d)high((__m512i)a); }
KP_EMULATED_INLINE __m512d joined(__m256d low, __m256d high) {
  return (__m512d)joined((__m256i)low, (__m256i)high);
}

#define KP_BY_HALVES_1(name, type, instruction) \
  KP_EMULATED_INLINE type name(type a) { return joined(instruction(low(a)), instruction(high(a))); }
#define KP_BY_HALVES_2(name, type, instruction)                                \
  KP_EMULATED_INLINE type name(type a, type b) {                               \
    return joined(instruction(low(a), low(b)), instruction(high(a), high(b))); \
  }

KP_BY_HALVES_1(floor_ps, __m512, _mm256_floor_ps)
KP_BY_HALVES_2(add_ps, __m512, _mm256_add_ps)
KP_BY_HALVES_2(max_ps, __m512, _mm256_max_ps)
KP_BY_HALVES_2(min_ps, __m512, _mm256_min_ps)
KP_BY_HALVES_2(unpackhi_pd, __m512d, _mm256_unpackhi_pd)
KP_BY_HALVES_2(unpackhi_ps, __m512, _mm256_unpackhi_ps)
KP_BY_HALVES_2(unpacklo_pd, __m512d, _mm256_unpacklo_pd)
KP_BY_HALVES_2(unpacklo_ps, __m512, _mm256_unpacklo_ps)
KP_BY_HALVES_2(add_epi32, __m512i, _mm256_add_epi32)
KP_BY_HALVES_2(madd_epi16, __m512i, _mm256_madd_epi16)
KP_BY_HALVES_2(max_epi32, __m512i, _mm256_max_epi32)
KP_BY_HALVES_2(shuffle_epi8, __m512i, _mm256_shuffle_epi8)
KP_BY_HALVES_2(unpackhi_epi8, __m512i, _mm256_unpackhi_epi8)
KP_BY_HALVES_2(unpackhi_epi16, __m512i, _mm256_unpackhi_epi16)
KP_BY_HALVES_2(unpackhi_epi32, __m512i, _mm256_unpackhi_epi32)
KP_BY_HALVES_2(unpackhi_epi64, __m512i, _mm256_unpackhi_epi64)
KP_BY_HALVES_2(unpacklo_epi8, __m512i, _mm256_unpacklo_epi8)
KP_BY_HALVES_2(unpacklo_epi16, __m512i, _mm256_unpacklo_epi16)
KP_BY_HALVES_2(unpacklo_epi32, __m512i, _mm256_unpacklo_epi32)
KP_BY_HALVES_2(unpacklo_epi64, __m512i, _mm256_unpacklo_epi64)

KP_EMULATED_INLINE __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return joined(_mm256_fmadd_ps(low(a), low(b), low(c)), _mm256_fmadd_ps(high(a), high(b), high(c)));
}
KP_EMULATED_INLINE __m512 cvtph_ps(__m256i a) {
  return joined(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
template <int Rounding>
KP_EMULATED_INLINE __m256i cvtps_ph(__m512 a) {
  return _mm256_set_m128i(_mm256_cvtps_ph(high(a), Rounding), _mm256_cvtps_ph(low(a), Rounding));
}
template <int Predicate>
KP_EMULATED_INLINE __mmask16 cmp_ps_mask(__m512 a, __m512 b) {
  const int first = _mm256_movemask_ps(_mm256_cmp_ps(low(a), low(b), Predicate));
  return static_cast<__mmask16>(first | _mm256_movemask_ps(_mm256_cmp_ps(high(a), high(b), Predicate)) << 8);
}
KP_EMULATED_INLINE __mmask16 cmplt_epi32_mask(__m512i a, __m512i b) {
  const auto bits = [](__m256i a, __m256i b) { return _mm256_movemask_ps((__m256)_mm256_cmpgt_epi32(b, a)); };
  return static_cast<__mmask16>(bits(low(a), low(b)) | bits(high(a), high(b)) << 8);
}
KP_EMULATED_INLINE __mmask32 test_epi16_mask(__m512i a, __m512i b) {
  const auto both = as<Lanes<uint16_t>>(a & b);
  __mmask32 mask = 0;
  for (int i = 0; i < 32; ++i) mask |= static_cast<__mmask32>(both[i] != 0) << i;
  return mask;
}

// --- lane by lane --------------------------------------------------------------------------------------------------------

KP_EMULATED_INLINE __m512i slli_epi16(__m512i a, int n) { return as<__m512i>(as<Lanes<uint16_t>>(a) << n); }
KP_EMULATED_INLINE __m512i slli_epi32(__m512i a, int n) { return as<__m512i>(as<Lanes<uint32_t>>(a) << n); }
KP_EMULATED_INLINE __m512i srli_epi16(__m512i a, int n) { return as<__m512i>(as<Lanes<uint16_t>>(a) >> n); }
KP_EMULATED_INLINE __m512i and_si512(__m512i a, __m512i b) { return a & b; }
KP_EMULATED_INLINE __m512i or_si512(__m512i a, __m512i b) { return a | b; }
template <int Table>
KP_EMULATED_INLINE __m512i ternarylogic_epi32(__m512i a, __m512i b, __m512i c) {
  __m512i result = {};
  for (int bits = 0; bits < 8; ++bits)
    if (Table >> bits & 1) result |= (bits & 4 ? a : ~a) & (bits & 2 ? b : ~b) & (bits & 1 ? c : ~c);
  return result;
}

KP_EMULATED_INLINE __m512i set1_epi8(char value) { return as<__m512i>(Lanes<char>{} + value); }
KP_EMULATED_INLINE __m512i set1_epi16(int16_t value) { return as<__m512i>(Lanes<int16_t>{} + value); }
KP_EMULATED_INLINE __m512i set1_epi32(int32_t value) { return as<__m512i>(Lanes<int32_t>{} + value); }
KP_EMULATED_INLINE __m512 set1_ps(float value) {
  return joined(_mm256_set1_ps(value), _mm256_set1_ps(value));
}
KP_EMULATED_INLINE __m512 setzero_ps() { return __m512{}; }
template <class... Values>
KP_EMULATED_INLINE __m512i setr_epi32(Values... values) {
  return as<__m512i>(Lanes<int32_t>{static_cast<int32_t>(values)...});
}
template <class... Values>
KP_EMULATED_INLINE __m512i setr_epi64(Values... values) {
  return __m512i{static_cast<long long>(values)...};
}
KP_EMULATED_INLINE __m512 broadcastss_ps(__m128 a) { return set1_ps(a[0]); }
KP_EMULATED_INLINE __m512i broadcast_i32x4(__m128i a) {
  return joined(_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(a));
}

// Lanes of another width: the low bits of each, or each with zeros before it.
template <class To, class From, class Result, class Given>
KP_EMULATED_INLINE Result converted(Given given) {
  constexpr int kCount = sizeof(Given) / sizeof(From);
  From from[kCount];
  To to[kCount];
  static_assert(sizeof to == sizeof(Result));
  std::memcpy(from, &given, sizeof from);
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<To>(from[i]);
  Result result;
  std::memcpy(&result, to, sizeof result);
  return result;
}
KP_EMULATED_INLINE __m256i cvtepi16_epi8(__m512i a) { return converted<uint8_t, uint16_t, __m256i>(a); }
KP_EMULATED_INLINE __m256i cvtepi32_epi16(__m512i a) { return converted<uint16_t, uint32_t, __m256i>(a); }
KP_EMULATED_INLINE __m128i cvtepi32_epi8(__m512i a) { return converted<uint8_t, uint32_t, __m128i>(a); }
KP_EMULATED_INLINE __m512i cvtepu8_epi16(__m256i a) { return converted<uint16_t, uint8_t, __m512i>(a); }
KP_EMULATED_INLINE __m512i cvtepu8_epi32(__m128i a) { return converted<uint32_t, uint8_t, __m512i>(a); }
KP_EMULATED_INLINE __m512i cvtepu16_epi32(__m256i a) { return converted<uint32_t, uint16_t, __m512i>(a); }

// --- lanes in another order ----------------------------------------------------------------------------------------------

// Each index counts the lanes of a, then, where there is one, those of b; bits beyond are ignored.
template <class E, class V, class... Sources>
KP_EMULATED_INLINE V chosen(__m512i index, Sources... sources) {
  constexpr int kCount = 64 / sizeof(E);
  const V given[] = {sources...};
  E from[sizeof...(sources) * kCount], at[kCount], to[kCount];
  std::memcpy(from, given, sizeof from);
  std::memcpy(at, &index, sizeof at);
  for (int i = 0; i < kCount; ++i) to[i] = from[at[i] & (sizeof...(sources) * kCount - 1)];
  V result;
  std::memcpy(&result, to, sizeof result);
  return result;
}
template <class E, class V>
KP_EMULATED_INLINE V permuted(V a, __m512i index) {
  return chosen<E, V>(index, a);
}
template <class E, class V>
KP_EMULATED_INLINE V permuted(V a, __m512i index, V b) {
  return chosen<E, V>(index, a, b);
}
KP_EMULATED_INLINE __m512i permutexvar_epi16(__m512i index, __m512i a) {
  return permuted<uint16_t>(a, index);
}
KP_EMULATED_INLINE __m512i permutexvar_epi32(__m512i index, __m512i a) {
  return permuted<uint32_t>(a, index);
}
KP_EMULATED_INLINE __m512i permutexvar_epi64(__m512i index, __m512i a) {
  return permuted<uint64_t>(a, index);
}
KP_EMULATED_INLINE __m512 permutexvar_ps(__m512i index, __m512 a) { return permuted<uint32_t>(a, index); }
KP_EMULATED_INLINE __m512i permutex2var_epi8(__m512i a, __m512i index, __m512i b) {
  return permuted<uint8_t>(a, index, b);
}
KP_EMULATED_INLINE __m512i permutex2var_epi16(__m512i a, __m512i index, __m512i b) {
  return permuted<uint16_t>(a, index, b);
}
KP_EMULATED_INLINE __m512 permutex2var_ps(__m512 a, __m512i index, __m512 b) {
  return permuted<uint32_t>(a, index, b);
}

// Two pieces of 16 bytes of a, then two of b.
template <int Order, class V>
KP_EMULATED_INLINE V shuffle_32x4(V a, V b) {
  constexpr long long k0 = 2 * (Order & 3), k1 = 2 * (Order >> 2 & 3), k2 = 8 + 2 * (Order >> 4 & 3),
                      k3 = 8 + 2 * (Order >> 6);
  return permuted<uint64_t>(a, __m512i{k0, k0 + 1, k1, k1 + 1, k2, k2 + 1, k3, k3 + 1}, b);
}

// --- masks ---------------------------------------------------------------------------------------------------------------

// All bits of each lane that the mask names.
template <class E>
KP_EMULATED_INLINE Lanes<E> selected(uint64_t mask) {
  Lanes<E> lanes;
  for (int i = 0; i < static_cast<int>(64 / sizeof(E)); ++i) lanes[i] = static_cast<E>(-(mask >> i & 1));
  return lanes;
}
template <class E, class V>
KP_EMULATED_INLINE V blended(uint64_t mask, V no, V yes) {
  const Lanes<E> these = selected<E>(mask);
  return as<V>((as<Lanes<E>>(yes) & these) | (as<Lanes<E>>(no) & ~these));
}
KP_EMULATED_INLINE __m512i mask_blend_epi32(__mmask16 k, __m512i a, __m512i b) {
  return blended<uint32_t>(k, a, b);
}
KP_EMULATED_INLINE __m512 mask_blend_ps(__mmask16 k, __m512 a, __m512 b) {
  return blended<uint32_t>(k, a, b);
}
KP_EMULATED_INLINE __m512i mask_mov_epi16(__m512i from, __mmask32 k, __m512i a) {
  return blended<uint16_t>(k, from, a);
}
KP_EMULATED_INLINE __m512 mask_mov_ps(__m512 from, __mmask16 k, __m512 a) {
  return blended<uint32_t>(k, from, a);
}
KP_EMULATED_INLINE __m512 maskz_mov_ps(__mmask16 k, __m512 a) { return blended<uint32_t>(k, __m512{}, a); }
KP_EMULATED_INLINE __m512 mask_broadcastss_ps(__m512 from, __mmask16 k, __m128 a) {
  return blended<uint32_t>(k, from, broadcastss_ps(a));
}

// --- memory --------------------------------------------------------------------------------------------------------------

template <class V>
KP_EMULATED_INLINE V loaded(const void* from) {
  V result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
template <class V>
KP_EMULATED_INLINE void stored(void* to, V a) {
  std::memcpy(to, &a, sizeof a);
}
template <class V>
KP_EMULATED_INLINE V aligned_load(const void* from) {
  check_aligned(from);
  return loaded<V>(from);
}
KP_EMULATED_INLINE void stream_si512(void* to, __m512i a) {
  check_aligned(to);
  _mm256_stream_si256(static_cast<__m256i*>(to), low(a));
  _mm256_stream_si256(static_cast<__m256i*>(to) + 1, high(a));
}

template <class E, class V>
KP_EMULATED_INLINE V masked_load(uint64_t mask, const void* from) {
  E lanes[sizeof(V) / sizeof(E)] = {};
  for (int i = 0; mask; ++i, mask >>= 1)
    if (mask & 1) std::memcpy(&lanes[i], static_cast<const E*>(from) + i, sizeof(E));
  return loaded<V>(lanes);
}
template <class E, class V>
KP_EMULATED_INLINE void masked_store(void* to, uint64_t mask, V a) {
  E lanes[sizeof(V) / sizeof(E)];
  stored(lanes, a);
  for (int i = 0; mask; ++i, mask >>= 1)
    if (mask & 1) std::memcpy(static_cast<E*>(to) + i, &lanes[i], sizeof(E));
}

// --- numbers -------------------------------------------------------------------------------------------------------------

// The halves are added, then the halves of their sum, and so on.
KP_EMULATED_INLINE float reduce_add_ps(__m512 a) {
  const __m256 eight = low(a) + high(a);
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
KP_EMULATED_INLINE float reduce_max_ps(__m512 a) {
  const __m256 eight = _mm256_max_ps(low(a), high(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return two[0] > two[1] ? two[0] : two[1];
}

constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
template <int Rounding>
KP_EMULATED_INLINE __m512 roundscale_ps(__m512 a) {
  static_assert(Rounding == kDown);
  return floor_ps(a);
}
// What the rounding takes away: of an infinity, nothing.
template <int Rounding>
KP_EMULATED_INLINE __m512 reduce_ps(__m512 a) {
  const __m512 rest = a - roundscale_ps<Rounding>(a);
  __m512 result;
  for (int i = 0; i < 16; ++i) result[i] = __builtin_isinf(a[i]) ? 0.0f : rest[i];
  return result;
}

KP_EMULATED_INLINE float scaled(float a, float power) {
  if (__builtin_isnan(a) || __builtin_isnan(power)) return a + power;
  if (__builtin_isinf(power))
    return power > 0 ? a * power : __builtin_isinf(a) ? a * 0.0f : __builtin_copysignf(0.0f, a);
  const float whole = __builtin_floorf(power), most = 600;  // beyond what float32 has from end to end
  const int64_t exponent = static_cast<int64_t>(whole < -most ? -most : whole > most ? most : whole);
  return static_cast<float>(static_cast<double>(a) * std::bit_cast<double>((exponent + 1023) << 52));
}
KP_EMULATED_INLINE __m512 scalef_ps(__m512 a, __m512 power) {
  __m512 result;
  for (int i = 0; i < 16; ++i) result[i] = scaled(a[i], power[i]);
  return result;
}
KP_EMULATED_INLINE __m512 maskz_scalef_ps(__mmask16 k, __m512 a, __m512 power) {
  return maskz_mov_ps(k, scalef_ps(a, power));
}

KP_EMULATED_INLINE __m512 rcp14_ps(__m512 a) {
  constexpr uint32_t kDropped = 9;  // of 23 bits of fraction
  __m512 result;
  for (int i = 0; i < 16; ++i) {
    const float exact = 1.0f / a[i];
    const uint32_t bits = std::bit_cast<uint32_t>(exact),
                   rounded = (bits + (1u << (kDropped - 1))) >> kDropped << kDropped;
    result[i] = __builtin_isfinite(exact) ? std::bit_cast<float>(rounded) : exact;
  }
  return result;
}

KP_EMULATED_INLINE uint16_t rounded_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (__builtin_isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if ((bits & 0x7f800000) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
KP_EMULATED_INLINE __m256i cvtneps_pbh(__m512 a) {
  uint16_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = rounded_bf16(a[i]);
  return loaded<__m256i>(lanes);
}
KP_EMULATED_INLINE __m512i cvtne2ps_pbh(__m512 upper, __m512 lower) {
  return joined(cvtneps_pbh(lower), cvtneps_pbh(upper));
}

KP_EMULATED_INLINE Lanes<float> without_subnormal(Lanes<uint32_t> bits) {
  return as<Lanes<float>>((bits & 0x7f800000) != 0 ? bits : bits & 0x80000000);
}
KP_EMULATED_INLINE __m512 dpbf16_ps(__m512 sum, __m512i a, __m512i b) {
  const auto lower = [](__m512i pairs) { return without_subnormal(as<Lanes<uint32_t>>(pairs) << 16); };
  const auto upper = [](__m512i pairs) { return without_subnormal(as<Lanes<uint32_t>>(pairs) & 0xffff0000); };
  const auto flushed = [](__m512 value) { return as<__m512>(without_subnormal(as<Lanes<uint32_t>>(value))); };
  sum = flushed(fmadd_ps(as<__m512>(upper(a)), as<__m512>(upper(b)), flushed(sum)));
  return flushed(fmadd_ps(as<__m512>(lower(a)), as<__m512>(lower(b)), sum));
}

// Four products of an unsigned and a signed byte; sums wrap.
KP_EMULATED_INLINE __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  auto total = as<Lanes<int32_t>>(sum);
  for (int byte = 0; byte < 4; ++byte) {
    const auto first = as<Lanes<int32_t>>(as<Lanes<uint32_t>>(a) >> (8 * byte) & 0xff);
    const auto second = as<Lanes<int32_t>>(as<Lanes<uint32_t>>(b) << (24 - 8 * byte)) >> 24;
    total = as<Lanes<int32_t>>(as<Lanes<uint32_t>>(total) + as<Lanes<uint32_t>>(first * second));
  }
  return as<__m512i>(total);
}

}  // namespace
}  // namespace kernelpair::emulated
