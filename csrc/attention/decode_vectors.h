// The two products of a decode step on vectors of floats, for every dtype and tier. Rows of the cache are
// converted as they are read, 32 elements at a time; a register block holds sixteen sums, so that one row
// serves several query heads and chains of fma overlap. Converting costs bf16 one instruction for each
// vector: even and odd elements apart, in queries and sums alike. Meanwhile the next head's rows are fetched
// to the first-level cache: a block ahead, to the second level, took 1.2 times as long on an Intel Xeon (Ice Lake).
#pragma once

#include "attention/decode_block.h"
#include "core/scratch.h"
#include "simd/pairs.h"
#include "simd/sums.h"

namespace kernelpair::KP_TIER {
namespace {

// Of 32 registers: enough chains for the latency of fma; or two or four registers each.
constexpr int kSums = kVectorBytes == 64 ? 16 : 4;
constexpr int kSumHeads = kVectorBytes == 64 ? 4 : 2, kSumVectors = kSumHeads;

// Of the keys of a block, 16 of 8 heads: what a head prefetches at once is not much more than a core can wait
// for. 64 keys took 1.3 to 2.2 times as long on an Intel Xeon (Ice Lake).
constexpr int64_t kVectorBlockBytes = 36 << 10;

template <class T>
struct DecodeVectors {
  using Element = T;
  // Rows of a head at a time are too many streams for the hardware.
  static constexpr bool kPrefetchInOrder = true;
  static constexpr int64_t kBlockBytes = kVectorBlockBytes;

  DecodeShape shape;
  int64_t columns;
  float *queries, *sums;

  DecodeVectors(const DecodeShape& s, BumpAllocator& allocator) : shape(s), columns(s.group) {
    queries = allocator.take<float>(s.heads * s.group * query_width());
    sums = allocator.take<float>(s.heads * s.group * sum_width());
  }

  int64_t query_width() const { return round_up(shape.D, kPair); }
  int64_t sum_width() const { return round_up(shape.Dv, kPair); }
  int64_t key_step() const { return 1; }

  KP_NOINLINE void set_queries(const T* q) {
    for (int64_t i = 0; i < shape.heads * shape.group * query_width(); i += kPair) {
      F32x16 first, second;
      load_pair(q + i, first, second);
      store(queries + i, first);
      store(queries + i + kLanes, second);
    }
  }

  KP_NOINLINE void scores(const KeyBlock& block, float* to, int64_t score_stride) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.k_head_stride;
      Following next = block.behind_head<&KeyBlock::k>(shape, h);
      const float* q = queries + h * shape.group * query_width();
      float* corner = to + h * columns;
      int64_t g = 0;
      if constexpr (kSums >= 16)
        for (; g + 8 <= shape.group; g += 8, next.keys = 0)
          score_heads<8>(block, offset, next, q + g * query_width(), corner + g, score_stride);
      for (; g + 4 <= shape.group; g += 4, next.keys = 0)
        score_heads<4>(block, offset, next, q + g * query_width(), corner + g, score_stride);
      for (; g < shape.group; ++g, next.keys = 0)
        score_heads<1>(block, offset, next, q + g * query_width(), corner + g, score_stride);
    }
  }

  // kSums sums at a time: kSums / kHeads keys by kHeads heads.
  template <int kHeads>
  KP_NOINLINE void score_heads(const KeyBlock& block, int64_t offset, const Following& next, const float* q,
                               float* to, int64_t score_stride) {
    constexpr int kKeys = kSums / kHeads;
    const int64_t whole = shape.D / kPair * kPair;
    for (int64_t j = 0; j < block.keys; j += kKeys) {
      const T* rows[kKeys];
      const char* ahead[kKeys];
      for (int i = 0; i < kKeys; ++i) {
        const char* row = block.k[j + i] + offset;
        rows[i] = reinterpret_cast<const T*>(row);
        ahead[i] = next.row(j + i, row);
      }
      F32x16 sum[kSums] = {};
      for (int64_t d = 0; d < whole; d += kPair) {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i) {
          F32x16 first, second;
          load_pair(rows[i] + d, first, second);
          next.fetch_part<3, kPair * sizeof(T)>(ahead[i], d * sizeof(T));
#pragma GCC unroll 8
          for (int g = 0; g < kHeads; ++g) {
            const float* query = q + g * query_width() + d;
            sum[i * kHeads + g] = fma(first, load(query), sum[i * kHeads + g]);
            sum[i * kHeads + g] = fma(second, load(query + kLanes), sum[i * kHeads + g]);
          }
        }
      }
      float lanes[kSums];
      store_sums(lanes, sum);
      float* corner = to + j * score_stride;
      const int64_t live = least(kKeys, block.keys - j);
      for (int64_t i = 0; i < live; ++i)
        __builtin_memcpy(corner + i * score_stride, lanes + i * kHeads, kHeads * sizeof(float));
      for (int64_t i = 0; whole < shape.D && i < live; ++i)
        add_tail(rows[i] + whole, q + whole, kHeads, corner + i * score_stride);
    }
  }

  // The columns past the last whole pair of vectors.
  KP_NOINLINE void add_tail(const T* key, const float* q, int64_t heads, float* to) {
    F32x16 first, second;
    load_pair(key, shape.D % kPair, first, second);
    for (int64_t g = 0; g < heads; ++g, q += query_width())
      to[g] += reduce_add(fma(first, load(q), second * load(q + kLanes)));
  }

  KP_NOINLINE void accumulate(const KeyBlock& block, const float* weights, int64_t score_stride, bool first) {
    if (first) __builtin_memset(sums, 0, shape.heads * shape.group * sum_width() * sizeof(float));
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.v_head_stride;
      Following next = block.behind_head<&KeyBlock::v>(shape, h);
      if (shape.shared) next.keys = 0;
      const float* weight = weights + h * columns;
      float* sum = sums + h * shape.group * sum_width();
      int64_t g = 0;
      if constexpr (kSums >= 16)
        for (; g + 8 <= shape.group; g += 8, next.keys = 0)
          value_heads<8, 2>(block, offset, next, weight + g, score_stride, sum + g * sum_width());
      for (; g + kSumHeads <= shape.group; g += kSumHeads, next.keys = 0)
        value_heads<kSumHeads, kSumVectors>(block, offset, next, weight + g, score_stride,
                                            sum + g * sum_width());
      for (; g < shape.group; ++g, next.keys = 0)
        value_heads<1, kSumVectors>(block, offset, next, weight + g, score_stride, sum + g * sum_width());
    }
  }

  template <int kHeads, int kVectors>
  KP_NOINLINE void value_heads(const KeyBlock& block, int64_t offset, const Following& next,
                               const float* weight, int64_t score_stride, float* sum) {
    int64_t d = 0;
    for (; d + kVectors * kLanes <= shape.Dv; d += kVectors * kLanes)
      value_columns<kHeads, kVectors>(block, offset, next, weight, score_stride, d, sum + d);
    for (; d < shape.Dv; d += kPair)
      for (int g = 0; g < kHeads; ++g)
        value_tail(block, offset, weight + g, score_stride, d, sum + g * sum_width() + d);
  }

  template <int kHeads, int kVectors>
  KP_INLINE void value_columns(const KeyBlock& block, int64_t offset, const Following& next,
                               const float* weight, int64_t score_stride, int64_t d, float* to) {
    const int64_t width = sum_width();  // stores leave it alone, which the compiler does not see
    F32x16 sum[kHeads][kVectors];
    for (int g = 0; g < kHeads; ++g)
      for (int n = 0; n < kVectors; ++n) sum[g][n] = load(to + g * width + n * kLanes);
    for (int64_t j = 0; j < block.keys; ++j) {
      const char* row = block.v[j] + offset;
      const T* value = reinterpret_cast<const T*>(row) + d;
      next.fetch_part<3, kVectors * kLanes * sizeof(T)>(next.row(j, row), d * sizeof(T));
      F32x16 column[kVectors];
      for (int n = 0; n < kVectors; n += 2) load_pair(value + n * kLanes, column[n], column[n + 1]);
      for (int g = 0; g < kHeads; ++g) {
        const F32x16 factor = splat(weight[j * score_stride + g]);
        for (int n = 0; n < kVectors; ++n) sum[g][n] = fma(factor, column[n], sum[g][n]);
      }
    }
    for (int g = 0; g < kHeads; ++g)
      for (int n = 0; n < kVectors; ++n) store(to + g * width + n * kLanes, sum[g][n]);
  }

  // Up to 32 columns of one head.
  KP_NOINLINE void value_tail(const KeyBlock& block, int64_t offset, const float* weight,
                              int64_t score_stride, int64_t d, float* to) {
    const int64_t live = least(kPair, shape.Dv - d);
    F32x16 sum[2] = {load(to), load(to + kLanes)}, column[2];
    for (int64_t j = 0; j < block.keys; ++j) {
      const T* value = reinterpret_cast<const T*>(block.v[j] + offset) + d;
      if (live == kPair)
        load_pair(value, column[0], column[1]);
      else
        load_pair(value, live, column[0], column[1]);
      const F32x16 factor = splat(weight[j * score_stride]);
      sum[0] = fma(factor, column[0], sum[0]);
      sum[1] = fma(factor, column[1], sum[1]);
    }
    store(to, sum[0]);
    store(to + kLanes, sum[1]);
  }

  KP_NOINLINE void rescale(const float* factors) {
    for (int64_t i = 0; i < shape.heads * shape.group; ++i)
      if (factors[i] != 1) scale_floats(sums + i * sum_width(), sum_width(), factors[i]);
  }

  void read(int64_t h, int64_t g, float* to) const {
    const float* row = sums + (h * shape.group + g) * sum_width();
    for (int64_t d = 0; d < sum_width(); d += kPair) {
      F32x16 first = load(row + d), second = load(row + d + kLanes);
      restore_order<T>(first, second);
      store(to + d, first);
      store(to + d + kLanes, second);
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
