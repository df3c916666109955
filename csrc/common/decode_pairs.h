// The two products of a decode step with VDPBF16PS, for few query heads a kv head: a tile would be mostly padding.
//
//   scores   a lane sums neighbouring d of one key and one head; sixteen such sums at a time become a vector of scores.
//   values   rows of two keys are interleaved as they are read, and meet the two weights in one dword.
//
// Rows are read with masks, so that nothing past them is touched and any width will do.
#pragma once

#include "common/attention_pack.h"
#include "common/decode_vectors.h"
#include "common/path.h"
#include "common/tile_pack.h"

namespace kernelpair::KP_TIER {
namespace {

#if defined(KP_TIER_AVX512_BF16)

struct DecodePairs {
  using Element = Bf16;
  static constexpr bool kPrefetchInOrder = true;

  DecodeShape shape;
  int64_t columns;
  Bf16* queries;
  int32_t* weights;  // [pair of keys][column] the weights of both keys
  float* sums;       // [head][32 columns of a value as interleaving leaves them]

  DecodePairs(const DecodeShape& s, Carver& carver) : shape(s), columns(s.group) {
    queries = carver.take<Bf16>(s.heads * s.group * query_width());
    weights = carver.take<int32_t>(kMostBlockKeys / 2 * round_up(s.heads * s.group, kLanes));
    sums = carver.take<float>(s.heads * s.group * sum_width());
  }

  int64_t query_width() const { return round_up(shape.D, kPair); }
  int64_t sum_width() const { return round_up(shape.Dv, kPair); }
  int64_t key_step() const { return 2; }

  void set_queries(const Bf16* q) {
    __builtin_memcpy(queries, q, shape.heads * shape.group * query_width() * sizeof(Bf16));
  }

  KP_NOINLINE void scores(const KeyBlock& block, float* to, int64_t row) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.k_head_stride;
      if (block.ahead) prefetch_rows(block.ahead->k, 0, block.ahead->keys, offset, shape.D * 2);
      const Bf16* q = queries + h * shape.group * query_width();
      float* corner = to + h * columns;
      int64_t g = 0;
      for (; g + 8 <= shape.group; g += 8) score_heads<8>(block, offset, q + g * query_width(), corner + g, row);
      for (; g + 4 <= shape.group; g += 4) score_heads<4>(block, offset, q + g * query_width(), corner + g, row);
      for (; g < shape.group; ++g) score_heads<1>(block, offset, q + g * query_width(), corner + g, row);
    }
  }

  // kSums sums at a time: kSums / kHeads keys by kHeads heads.
  template <int kHeads>
  KP_NOINLINE void score_heads(const KeyBlock& block, int64_t offset, const Bf16* q, float* to, int64_t row) {
    constexpr int kKeys = kSums / kHeads;
    for (int64_t j = 0; j < block.keys; j += kKeys) {
      const char* rows[kKeys];
      for (int i = 0; i < kKeys; ++i) rows[i] = block.k[least(j + i, block.keys - 1)] + offset;  // the last again, not stored
      F32x16 sum[kSums] = {};
      int64_t d = 0;
      for (; d + kPair <= shape.D; d += kPair) add_scores<kHeads>(sum, rows, q, d, kPair);
      if (d < shape.D) add_scores<kHeads>(sum, rows, q, d, shape.D - d);
      float lanes[kSums];
      store_sums(lanes, sum);
      for (int64_t i = 0; i < least(kKeys, block.keys - j); ++i)
        __builtin_memcpy(to + (j + i) * row, lanes + i * kHeads, kHeads * sizeof(float));
    }
  }

  template <int kHeads>
  KP_INLINE void add_scores(F32x16 (&sum)[kSums], const char* const* rows, const Bf16* q, int64_t d, int64_t live) const {
    I32x16 query[kHeads];
    for (int g = 0; g < kHeads; ++g) query[g] = load_dwords(q + g * query_width() + d);
#pragma GCC unroll 16
    for (int i = 0; i < kSums / kHeads; ++i) {
      const I32x16 key = load_bytes(rows[i] + d * 2, live * 2);
#pragma GCC unroll 8
      for (int g = 0; g < kHeads; ++g) sum[i * kHeads + g] = add_products(sum[i * kHeads + g], key, query[g]);
    }
  }

  KP_NOINLINE void accumulate(const KeyBlock& block, const float* from, int64_t row, bool first) {
    took(Path::decode_pairs);
    if (first) __builtin_memset(sums, 0, shape.heads * shape.group * sum_width() * sizeof(float));
    for (int64_t j = 0; j < block.keys; j += 2)
      for (int64_t c = 0; c < row; c += kLanes)
        store_dwords(weights + j / 2 * row + c, pack_pairs(load(from + j * row + c), load(from + (j + 1) * row + c)));
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t offset = h * shape.v_head_stride;
      if (block.ahead && !shape.shared) prefetch_rows(block.ahead->v, 0, block.ahead->keys, offset, shape.Dv * 2);
      const int32_t* weight = weights + h * columns;
      float* sum = sums + h * shape.group * sum_width();
      int64_t g = 0;
      for (; g + 8 <= shape.group; g += 8) value_heads<8, 2>(block, offset, weight + g, row, sum + g * sum_width());
      for (; g + 4 <= shape.group; g += 4) value_heads<4, 4>(block, offset, weight + g, row, sum + g * sum_width());
      for (; g < shape.group; ++g) value_heads<1, 8>(block, offset, weight + g, row, sum + g * sum_width());
    }
  }

  template <int kHeads, int kVectors>
  KP_NOINLINE void value_heads(const KeyBlock& block, int64_t offset, const int32_t* weight, int64_t row, float* sum) {
    int64_t d = 0;
    for (; d + kVectors * kLanes <= shape.Dv; d += kVectors * kLanes)
      value_columns<kHeads, kVectors>(block, offset + d * 2, kPair, weight, row, sum + d);
    for (; d < shape.Dv; d += kPair)
      value_columns<kHeads, 2>(block, offset + d * 2, least(kPair, shape.Dv - d), weight, row, sum + d);
  }

  // kVectors sums of kHeads heads; `live` columns of every 32 exist.
  template <int kHeads, int kVectors>
  KP_NOINLINE void value_columns(const KeyBlock& block, int64_t offset, int64_t live, const int32_t* weight, int64_t row,
                                 float* to) const {
    F32x16 sum[kHeads][kVectors];
#pragma GCC unroll 8
    for (int g = 0; g < kHeads; ++g)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[g][n] = load(to + g * sum_width() + n * kLanes);
    for (int64_t j = 0; j < block.keys; j += 2, weight += row) {
      const char *even = block.v[j] + offset, *odd = j + 1 < block.keys ? block.v[j + 1] + offset : nullptr;
      I32x16 pairs[kVectors];
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; n += 2) {
        const I32x16 low = load_bytes(even + n * 32, live * 2), high = odd ? load_bytes(odd + n * 32, live * 2) : I32x16{};
        pairs[n] = {{(IntPiece)_mm512_unpacklo_epi16((__m512i)low.p[0], (__m512i)high.p[0])}};
        pairs[n + 1] = {{(IntPiece)_mm512_unpackhi_epi16((__m512i)low.p[0], (__m512i)high.p[0])}};
      }
#pragma GCC unroll 8
      for (int g = 0; g < kHeads; ++g) {
        const I32x16 both = splat_int(weight[g]);
#pragma GCC unroll 8
        for (int n = 0; n < kVectors; ++n) sum[g][n] = add_products(sum[g][n], pairs[n], both);
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < kHeads; ++g)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) store(to + g * sum_width() + n * kLanes, sum[g][n]);
  }

  KP_NOINLINE void rescale(const float* factors) {
    for (int64_t i = 0; i < shape.heads * shape.group; ++i)
      if (factors[i] != 1) scale_floats(sums + i * sum_width(), sum_width(), factors[i]);
  }

  // Unpacking left columns 8 i .. 8 i + 3 of 32 in the first vector of a pair, 8 i + 4 .. 8 i + 7 in the second.
  void read(int64_t h, int64_t g, float* to) const {
    const float* row = sums + (h * shape.group + g) * sum_width();
    for (int64_t d = 0; d < sum_width(); d += 8)
      for (int64_t half = 0; half < 2; ++half)
        __builtin_memcpy(to + d + half * 4, row + d / kPair * kPair + half * kLanes + d % kPair / 2, 4 * sizeof(float));
  }

 private:
  KP_INLINE static F32x16 add_products(F32x16 sum, I32x16 a, I32x16 b) {
    return {{(FloatPiece)_mm512_dpbf16_ps((__m512)sum.p[0], (__m512bh)a.p[0], (__m512bh)b.p[0])}};
  }
};

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
