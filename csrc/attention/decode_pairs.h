// The two products of a decode step with VDPBF16PS, for few query heads a kv head: a tile would be mostly
// padding.
//
//   scores   a lane sums neighbouring d of one key and one head; sixteen such sums at a time become a vector
//            of scores.
//   values   rows of two keys are interleaved as they are read, and meet the two weights in one dword.
//
// Rows are read with masks, so that nothing past them is touched and any width will do. Those of the next block are
// fetched to the second-level cache meanwhile.
#pragma once

#include "attention/decode_vectors.h"
#include "core/path.h"
#include "tiles/dot_pairs.h"
#include "tiles/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(decode_pairs);

// T is Bf16. A template, so that only the tier that uses it compiles it.
template <class T>
struct DecodePairs {
  using Element = T;
  static constexpr bool kPrefetchInOrder = true;
  static constexpr int64_t kBlockBytes = kWideBlockBytes;

  DecodeShape shape;
  int64_t columns;
  T* queries;
  int32_t* weights;  // [pair of keys][column] the weights of both keys
  float* sums;       // [head][32 columns of a value as interleaving leaves them]

  DecodePairs(const DecodeShape& s, BumpAllocator& allocator) : shape(s), columns(s.group) {
    queries = allocator.take<T>(s.heads * s.group * query_width());
    weights = allocator.take<int32_t>(kMostBlockKeys / 2 * round_up(s.heads * s.group, kLanes));
    sums = allocator.take<float>(s.heads * s.group * sum_width());
  }

  int64_t query_width() const { return round_up(shape.D, kPair); }
  int64_t sum_width() const { return round_up(shape.Dv, kPair); }
  int64_t key_step() const { return 2; }

  void set_queries(const T* q) {
    __builtin_memcpy(queries, q, shape.heads * shape.group * query_width() * sizeof(T));
  }

  KP_NOINLINE void scores(const KeyBlock& block, float* to, int64_t score_stride) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.k_head_stride;
      Following next = block.in_next_block<&KeyBlock::k>(shape, h);
      const T* q = queries + h * shape.group * query_width();
      float* corner = to + h * columns;
      int64_t g = 0;
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
  KP_NOINLINE void score_heads(const KeyBlock& block, int64_t offset, const Following& next, const T* q,
                               float* to, int64_t score_stride) {
    constexpr int kKeys = kSums / kHeads;
    for (int64_t j = 0; j < block.keys; j += kKeys) {
      const char* rows[kKeys];
      // The last again, not stored.
      for (int i = 0; i < kKeys; ++i) rows[i] = block.k[least(j + i, block.keys - 1)] + offset;
      for (int i = 0; i < kKeys; ++i) next.fetch<2>(j + i, 0, shape.D * 2);
      F32x16 sum[kSums] = {};
      int64_t d = 0;
      for (; d + kPair <= shape.D; d += kPair) add_scores<kHeads>(sum, rows, q, d, kPair);
      if (d < shape.D) add_scores<kHeads>(sum, rows, q, d, shape.D - d);
      float lanes[kSums];
      store_sums(lanes, sum);
      for (int64_t i = 0; i < least(kKeys, block.keys - j); ++i)
        __builtin_memcpy(to + (j + i) * score_stride, lanes + i * kHeads, kHeads * sizeof(float));
    }
  }

  template <int kHeads>
  KP_INLINE void add_scores(F32x16 (&sum)[kSums], const char* const* rows, const T* q, int64_t d,
                            int64_t live) const {
    I32x16 query[kHeads];
    for (int g = 0; g < kHeads; ++g) query[g] = load_dwords(q + g * query_width() + d);
#pragma GCC unroll 16
    for (int i = 0; i < kSums / kHeads; ++i) {
      const I32x16 key = load_bytes(rows[i] + d * 2, live * 2);
#pragma GCC unroll 8
      for (int g = 0; g < kHeads; ++g) sum[i * kHeads + g] = dot_pairs(sum[i * kHeads + g], key, query[g]);
    }
  }

  KP_NOINLINE void accumulate(const KeyBlock& block, const float* from, int64_t score_stride, bool first) {
    mark(paths::decode_pairs);
    if (first) __builtin_memset(sums, 0, shape.heads * shape.group * sum_width() * sizeof(float));
    for (int64_t j = 0; j < block.keys; j += 2)
      for (int64_t c = 0; c < score_stride; c += kLanes)
        store_dwords(weights + j / 2 * score_stride + c,
                     pack_pairs(load(from + j * score_stride + c), load(from + (j + 1) * score_stride + c)));
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.v_head_stride;
      Following next = block.in_next_block<&KeyBlock::v>(shape, h);
      if (shape.shared) next.keys = 0;
      const int32_t* weight = weights + h * columns;
      float* sum = sums + h * shape.group * sum_width();
      int64_t g = 0;
      for (; g + 8 <= shape.group; g += 8, next.keys = 0)
        value_heads<8, 2>(block, offset, next, weight + g, score_stride, sum + g * sum_width());
      for (; g + 4 <= shape.group; g += 4, next.keys = 0)
        value_heads<4, 4>(block, offset, next, weight + g, score_stride, sum + g * sum_width());
      for (; g < shape.group; ++g, next.keys = 0)
        value_heads<1, 8>(block, offset, next, weight + g, score_stride, sum + g * sum_width());
    }
  }

  template <int kHeads, int kVectors>
  KP_NOINLINE void value_heads(const KeyBlock& block, int64_t offset, const Following& next,
                               const int32_t* weight, int64_t score_stride, float* sum) {
    int64_t d = 0;
    for (; d + kVectors * kLanes <= shape.Dv; d += kVectors * kLanes)
      value_columns<kHeads, kVectors>(block, offset, next, d, kPair, weight, score_stride, sum + d);
    for (; d < shape.Dv; d += kPair)
      value_columns<kHeads, 2>(block, offset, next, d, least(kPair, shape.Dv - d), weight, score_stride,
                               sum + d);
  }

  // kVectors sums of kHeads heads, from column d on; `live` columns of every 32 exist.
  template <int kHeads, int kVectors>
  KP_NOINLINE void value_columns(const KeyBlock& block, int64_t offset, const Following& next, int64_t d,
                                 int64_t live, const int32_t* weight, int64_t score_stride, float* to) const {
    const int64_t width = sum_width();  // stores leave it alone, which the compiler does not see
    F32x16 sum[kHeads][kVectors];
#pragma GCC unroll 8
    for (int g = 0; g < kHeads; ++g)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[g][n] = load(to + g * width + n * kLanes);
    for (int64_t j = 0; j < block.keys; j += 2, weight += score_stride) {
      const char* even = block.v[j] + offset + d * 2;
      const char* odd = j + 1 < block.keys ? block.v[j + 1] + offset + d * 2 : nullptr;
      for (int64_t i = j; i < j + 2; ++i) next.fetch<2>(i, d * 2, (d + kVectors * kLanes) * 2);
      I32x16 pairs[kVectors];
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; n += 2) {
        const I32x16 low = load_bytes(even + n * 32, live * 2),
                     high = odd ? load_bytes(odd + n * 32, live * 2) : I32x16{};
        unpack_rows(low, high, pairs[n], pairs[n + 1]);
      }
#pragma GCC unroll 8
      for (int g = 0; g < kHeads; ++g) {
        const I32x16 both = splat_int(weight[g]);
#pragma GCC unroll 8
        for (int n = 0; n < kVectors; ++n) sum[g][n] = dot_pairs(sum[g][n], pairs[n], both);
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < kHeads; ++g)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) store(to + g * width + n * kLanes, sum[g][n]);
  }

  KP_NOINLINE void rescale(const float* factors) {
    for (int64_t i = 0; i < shape.heads * shape.group; ++i)
      if (factors[i] != 1) scale_floats(sums + i * sum_width(), sum_width(), factors[i]);
  }

  // Unpacking left columns 8 i .. 8 i + 3 of 32 in the first vector of a pair, 8 i + 4 .. 8 i + 7 in the
  // second.
  void read(int64_t h, int64_t g, float* to) const {
    const float* row = sums + (h * shape.group + g) * sum_width();
    for (int64_t d = 0; d < sum_width(); d += 8)
      for (int64_t half = 0; half < 2; ++half)
        __builtin_memcpy(to + d + half * 4, row + d / kPair * kPair + half * kLanes + d % kPair / 2,
                         4 * sizeof(float));
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
