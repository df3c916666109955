// The names of AVX512's intrinsics that csrc takes, given to the functions that do without it (simd/emulated.h), and the macros by
// which a source sees that its tier has them. The compiler reads this before each source of such a tier.
#pragma once

#include "simd/emulated.h"

#define _mm256_mask_storeu_epi16(to, k, a) kernelpair::emulated::masked_store<uint16_t, __m256i>(to, k, a)
#define _mm256_maskz_loadu_epi16(k, from) (kernelpair::emulated::masked_load<uint16_t, __m256i>(k, from))
#define _mm512_add_epi32 kernelpair::emulated::add_epi32
#define _mm512_add_ps kernelpair::emulated::add_ps
#define _mm512_and_si512 kernelpair::emulated::and_si512
#define _mm512_broadcast_i32x4 kernelpair::emulated::broadcast_i32x4
#define _mm512_broadcastss_ps kernelpair::emulated::broadcastss_ps
#define _mm512_castsi512_ps(a) ((__m512)(a))
#define _mm512_cmp_ps_mask(a, b, predicate) kernelpair::emulated::cmp_ps_mask<(predicate)>(a, b)
#define _mm512_cmplt_epi32_mask kernelpair::emulated::cmplt_epi32_mask
#define _mm512_cvtepi16_epi8 kernelpair::emulated::cvtepi16_epi8
#define _mm512_cvtepi32_epi16 kernelpair::emulated::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 kernelpair::emulated::cvtepi32_epi8
#define _mm512_cvtepu16_epi32 kernelpair::emulated::cvtepu16_epi32
#define _mm512_cvtepu8_epi16 kernelpair::emulated::cvtepu8_epi16
#define _mm512_cvtepu8_epi32 kernelpair::emulated::cvtepu8_epi32
#define _mm512_cvtne2ps_pbh(a, b) ((__m512bh)kernelpair::emulated::cvtne2ps_pbh(a, b))
#define _mm512_cvtneps_pbh(a) ((__m256bh)kernelpair::emulated::cvtneps_pbh(a))
#define _mm512_cvtph_ps kernelpair::emulated::cvtph_ps
#define _mm512_cvtps_ph(a, rounding) kernelpair::emulated::cvtps_ph<(rounding)>(a)
#define _mm512_dpbf16_ps(sum, a, b) kernelpair::emulated::dpbf16_ps(sum, (__m512i)(a), (__m512i)(b))
#define _mm512_dpbusd_epi32 kernelpair::emulated::dpbusd_epi32
#define _mm512_fmadd_ps kernelpair::emulated::fmadd_ps
#define _mm512_load_si512(from) kernelpair::emulated::aligned_load<__m512i>(from)
#define _mm512_loadu_si512(from) kernelpair::emulated::loaded<__m512i>(from)
#define _mm512_madd_epi16 kernelpair::emulated::madd_epi16
#define _mm512_mask_blend_epi32 kernelpair::emulated::mask_blend_epi32
#define _mm512_mask_blend_ps kernelpair::emulated::mask_blend_ps
#define _mm512_mask_broadcastss_ps kernelpair::emulated::mask_broadcastss_ps
#define _mm512_mask_cvtepi32_storeu_epi8(to, k, a) \
  kernelpair::emulated::masked_store<uint8_t>(to, k, kernelpair::emulated::cvtepi32_epi8(a))
#define _mm512_mask_mov_epi16 kernelpair::emulated::mask_mov_epi16
#define _mm512_mask_mov_ps kernelpair::emulated::mask_mov_ps
#define _mm512_mask_storeu_ps(to, k, a) kernelpair::emulated::masked_store<uint32_t, __m512>(to, k, a)
#define _mm512_maskz_loadu_epi32(k, from) (kernelpair::emulated::masked_load<uint32_t, __m512i>(k, from))
#define _mm512_maskz_loadu_epi8(k, from) (kernelpair::emulated::masked_load<uint8_t, __m512i>(k, from))
#define _mm512_maskz_loadu_ps(k, from) (kernelpair::emulated::masked_load<uint32_t, __m512>(k, from))
#define _mm512_maskz_mov_ps kernelpair::emulated::maskz_mov_ps
#define _mm512_maskz_scalef_ps kernelpair::emulated::maskz_scalef_ps
#define _mm512_max_epi32 kernelpair::emulated::max_epi32
#define _mm512_max_ps kernelpair::emulated::max_ps
#define _mm512_min_ps kernelpair::emulated::min_ps
#define _mm512_or_si512 kernelpair::emulated::or_si512
#define _mm512_permutex2var_epi16 kernelpair::emulated::permutex2var_epi16
#define _mm512_permutex2var_epi8 kernelpair::emulated::permutex2var_epi8
#define _mm512_permutex2var_ps kernelpair::emulated::permutex2var_ps
#define _mm512_permutexvar_epi16 kernelpair::emulated::permutexvar_epi16
#define _mm512_permutexvar_epi32 kernelpair::emulated::permutexvar_epi32
#define _mm512_permutexvar_epi64 kernelpair::emulated::permutexvar_epi64
#define _mm512_permutexvar_ps kernelpair::emulated::permutexvar_ps
#define _mm512_rcp14_ps kernelpair::emulated::rcp14_ps
#define _mm512_reduce_add_ps kernelpair::emulated::reduce_add_ps
#define _mm512_reduce_max_ps kernelpair::emulated::reduce_max_ps
#define _mm512_reduce_ps(a, rounding) kernelpair::emulated::reduce_ps<(rounding)>(a)
#define _mm512_roundscale_ps(a, rounding) kernelpair::emulated::roundscale_ps<(rounding)>(a)
#define _mm512_scalef_ps kernelpair::emulated::scalef_ps
#define _mm512_set1_epi16 kernelpair::emulated::set1_epi16
#define _mm512_set1_epi32 kernelpair::emulated::set1_epi32
#define _mm512_set1_epi8 kernelpair::emulated::set1_epi8
#define _mm512_set1_ps kernelpair::emulated::set1_ps
#undef _mm512_setr_epi32  // macros in the header, too
#define _mm512_setr_epi32 kernelpair::emulated::setr_epi32
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 kernelpair::emulated::setr_epi64
#define _mm512_setzero_ps kernelpair::emulated::setzero_ps
#define _mm512_shuffle_epi8 kernelpair::emulated::shuffle_epi8
#define _mm512_shuffle_f32x4(a, b, order) kernelpair::emulated::shuffle_32x4<(order)>(a, b)
#define _mm512_shuffle_i32x4(a, b, order) kernelpair::emulated::shuffle_32x4<(order)>(a, b)
#define _mm512_slli_epi16 kernelpair::emulated::slli_epi16
#define _mm512_slli_epi32 kernelpair::emulated::slli_epi32
#define _mm512_srli_epi16 kernelpair::emulated::srli_epi16
#define _mm512_storeu_ps(to, a) kernelpair::emulated::stored<__m512>(to, a)
#define _mm512_storeu_si512(to, a) kernelpair::emulated::stored<__m512i>(to, a)
#define _mm512_stream_si512 kernelpair::emulated::stream_si512
#define _mm512_ternarylogic_epi32(a, b, c, table) kernelpair::emulated::ternarylogic_epi32<(table)>(a, b, c)
#define _mm512_test_epi16_mask kernelpair::emulated::test_epi16_mask
#define _mm512_unpackhi_epi16 kernelpair::emulated::unpackhi_epi16
#define _mm512_unpackhi_epi32 kernelpair::emulated::unpackhi_epi32
#define _mm512_unpackhi_epi64 kernelpair::emulated::unpackhi_epi64
#define _mm512_unpackhi_epi8 kernelpair::emulated::unpackhi_epi8
#define _mm512_unpackhi_pd kernelpair::emulated::unpackhi_pd
#define _mm512_unpackhi_ps kernelpair::emulated::unpackhi_ps
#define _mm512_unpacklo_epi16 kernelpair::emulated::unpacklo_epi16
#define _mm512_unpacklo_epi32 kernelpair::emulated::unpacklo_epi32
#define _mm512_unpacklo_epi64 kernelpair::emulated::unpacklo_epi64
#define _mm512_unpacklo_epi8 kernelpair::emulated::unpacklo_epi8
#define _mm512_unpacklo_pd kernelpair::emulated::unpacklo_pd
#define _mm512_unpacklo_ps kernelpair::emulated::unpacklo_ps

// What the compiler says of a CPU that has them.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#if defined(KP_EMULATED_AVX512VNNI)
#define __AVX512VNNI__ 1
#endif
#if defined(KP_EMULATED_AVX512BF16)
#define __AVX512BF16__ 1
#define __AVX512VBMI__ 1
#endif
