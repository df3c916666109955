// The two products of a decode step on vectors of floats, for every dtype and tier. Rows of the cache are converted as they are
// read; a register block holds sixteen sums, so that one row serves several query heads and chains of fma overlap.
#pragma once

#include "common/decode_block.h"
#include "common/scratch.h"

namespace kernelpair::KP_TIER {
namespace {

// Sixteen vectors become one: lane i of the result is the sum of rows[i].
KP_INLINE F32x16 sum_rows(F32x16 (&rows)[16]) {
#if defined(__AVX512F__)
  __m512 r[16];
  for (int i = 0; i < 16; ++i) r[i] = rows[i].p[0];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[i], r[i + 8]), _mm512_unpackhi_ps(r[i], r[i + 8]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    r[i] = _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)r[i], (__m512d)r[i + 4]),
                         (__m512)_mm512_unpackhi_pd((__m512d)r[i], (__m512d)r[i + 4]));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    r[i] = _mm512_add_ps(_mm512_shuffle_f32x4(r[i], r[i + 2], 0x88), _mm512_shuffle_f32x4(r[i], r[i + 2], 0xdd));
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
  // Lane 8 a + 4 b + c of the sums: c = (bit 3, bit 2) of the row, b = bit 1, a = bit 0.
  const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);
  return {{(FloatPiece)_mm512_permutexvar_ps(order, sums)}};
#else
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = reduce_add(rows[i]);
  return load(sums);
#endif
}

#if defined(__AVX512F__)
constexpr int kSumHeads = 4, kSumVectors = 4;
#else
constexpr int kSumHeads = 2, kSumVectors = 2;  // fewer registers, and two or four of them to a vector
#endif

template <class T>
struct DecodeVectors {
  using Element = T;

  DecodeShape shape;
  int64_t columns;
  float *queries, *sums;

  DecodeVectors(const DecodeShape& s, Carver& carver) : shape(s), columns(s.group) {
    queries = carver.take<float>(s.heads * s.group * query_width());
    sums = carver.take<float>(s.heads * s.group * sum_width());
  }

  int64_t query_width() const { return round_up(shape.D, kLanes); }
  int64_t sum_width() const { return round_up(shape.Dv, kLanes); }
  int64_t key_step() const { return 1; }

  void set_queries(const T* q) {
    for (int64_t i = 0; i < shape.heads * shape.group * query_width(); i += kLanes) store(queries + i, load(q + i));
  }

  void scores(const KeyBlock& block, float* to, int64_t row) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.k_head_stride;
      if (block.ahead) prefetch_rows(block.ahead->k, 0, block.ahead->keys, offset, shape.D * sizeof(T));
      const float* q = queries + h * shape.group * query_width();
      float* corner = to + h * columns;
      int64_t g = 0;
      for (; g + 4 <= shape.group; g += 4) score_heads<4>(block, offset, q + g * query_width(), corner + g, row);
      for (; g + 2 <= shape.group; g += 2) score_heads<2>(block, offset, q + g * query_width(), corner + g, row);
      for (; g < shape.group; ++g) score_heads<1>(block, offset, q + g * query_width(), corner + g, row);
    }
  }

  // Sixteen sums at a time: 16 / kHeads keys by kHeads heads.
  template <int kHeads>
  void score_heads(const KeyBlock& block, int64_t offset, const float* q, float* to, int64_t row) {
    constexpr int kKeys = 16 / kHeads;
    for (int64_t j = 0; j < block.keys; j += kKeys) {
      const T* rows[kKeys];
      for (int i = 0; i < kKeys; ++i)  // past the last key the last one again, not stored
        rows[i] = reinterpret_cast<const T*>(block.k[least(j + i, block.keys - 1)] + offset);
      F32x16 sum[16] = {};
      int64_t d = 0;
      for (; d + kLanes <= shape.D; d += kLanes) score_step<kHeads>(rows, q, d, kLanes, sum);
      if (d < shape.D) score_step<kHeads>(rows, q, d, static_cast<int>(shape.D - d), sum);
      float lanes[16];
      store(lanes, sum_rows(sum));
      for (int64_t i = 0; i < least(kKeys, block.keys - j); ++i)
        __builtin_memcpy(to + (j + i) * row, lanes + i * kHeads, kHeads * sizeof(float));
    }
  }

  template <int kHeads>
  KP_INLINE void score_step(const T* const* rows, const float* q, int64_t d, int lanes, F32x16 (&sum)[16]) {
    F32x16 query[kHeads];
    for (int g = 0; g < kHeads; ++g) query[g] = load(q + g * query_width() + d);
#pragma GCC unroll 16
    for (int i = 0; i < 16 / kHeads; ++i) {
      const F32x16 key = lanes == kLanes ? load(rows[i] + d) : load(rows[i] + d, lanes);
#pragma GCC unroll 4
      for (int g = 0; g < kHeads; ++g) sum[i * kHeads + g] = fma(key, query[g], sum[i * kHeads + g]);
    }
  }

  void accumulate(const KeyBlock& block, const float* weights, int64_t row, bool first) {
    if (first) __builtin_memset(sums, 0, shape.heads * shape.group * sum_width() * sizeof(float));
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.v_head_stride;
      if (block.ahead && !shape.shared) prefetch_rows(block.ahead->v, 0, block.ahead->keys, offset, shape.Dv * sizeof(T));
      const float* weight = weights + h * columns;
      float* sum = sums + h * shape.group * sum_width();
      int64_t g = 0;
      for (; g + kSumHeads <= shape.group; g += kSumHeads)
        value_heads<kSumHeads>(block, offset, weight + g, row, sum + g * sum_width());
      for (; g < shape.group; ++g) value_heads<1>(block, offset, weight + g, row, sum + g * sum_width());
    }
  }

  template <int kHeads>
  void value_heads(const KeyBlock& block, int64_t offset, const float* weight, int64_t row, float* sum) {
    int64_t d = 0;
    for (; d + kSumVectors * kLanes <= shape.Dv; d += kSumVectors * kLanes)
      value_columns<kHeads, kSumVectors>(block, offset, weight, row, d, kLanes, sum + d);
    for (; d < shape.Dv; d += kLanes)
      value_columns<kHeads, 1>(block, offset, weight, row, d, lanes_left(shape.Dv - d), sum + d);
  }

  template <int kHeads, int kVectors>
  KP_INLINE void value_columns(const KeyBlock& block, int64_t offset, const float* weight, int64_t row, int64_t d, int lanes,
                               float* to) {
    F32x16 sum[kHeads][kVectors];
    for (int g = 0; g < kHeads; ++g)
      for (int n = 0; n < kVectors; ++n) sum[g][n] = load(to + g * sum_width() + n * kLanes);
    for (int64_t j = 0; j < block.keys; ++j) {
      const T* value = reinterpret_cast<const T*>(block.v[j] + offset) + d;
      F32x16 column[kVectors];
      for (int n = 0; n < kVectors; ++n)
        column[n] = lanes == kLanes ? load(value + n * kLanes) : load(value + n * kLanes, lanes);
      for (int g = 0; g < kHeads; ++g) {
        const F32x16 factor = splat(weight[j * row + g]);
        for (int n = 0; n < kVectors; ++n) sum[g][n] = fma(factor, column[n], sum[g][n]);
      }
    }
    for (int g = 0; g < kHeads; ++g)
      for (int n = 0; n < kVectors; ++n) store(to + g * sum_width() + n * kLanes, sum[g][n]);
  }

  void rescale(const float* factors) {
    for (int64_t i = 0; i < shape.heads * shape.group; ++i)
      if (factors[i] != 1) scale_floats(sums + i * sum_width(), sum_width(), factors[i]);
  }

  void read(int64_t h, int64_t g, float* to) const {
    const float* row = sums + (h * shape.group + g) * sum_width();
    for (int64_t d = 0; d < sum_width(); d += kLanes) store(to + d, load(row + d));
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
