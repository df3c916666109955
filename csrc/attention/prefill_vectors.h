// Both products of prefill on float vectors, for every dtype and every tier. Operands are converted once,
// when they are packed:
//
//   queries [kBlockRows rows][d][kBlockRows]   one element at a time, spread over the lanes; the last of a unit
//                                              may have fewer rows
//   keys    [kColumns keys][d][kColumns]       weights take the place of the scores, sums are rows
//   values  [kColumns of dv][key][kColumns]    rows of them would fall into few sets of L1
#pragma once

#include "attention/prefill_plan.h"
#include "simd/dtypes.h"
#include "simd/float8.h"
#include "simd/row_counts.h"
#include "simd/transpose.h"

namespace kernelpair::KP_TIER {
namespace {

// Sums of a block: 16 of 32 registers, enough chains to hide the latency of fma; 12 of 16; or 8 of 16 quarters.
constexpr int kBlockRows = kVectorBytes == 64 ? 8 : kVectorBytes == 32 ? 3 : 2;
constexpr int kBlockVectors = kVectorBytes >= 32 ? 2 : 1;
constexpr int kColumns = kBlockVectors * kLanes;

// c (+)= a b for kRows rows and kColumns columns. Element (r, k) of `a` lies at r * kRowStride + k *
// kDepthStride, both known to the compiler: the loop needs one address. Row r of `c` starts at r * c_stride.
template <int kRows, int64_t kRowStride, int64_t kDepthStride>
__attribute__((noinline)) void row_block(const float* a, const float* b, int64_t depth, float* c,
                                         int64_t c_stride, bool fresh) {
  F32x16 sum[kRows][kBlockVectors] = {};
#pragma GCC unroll 8
  for (int r = 0; !fresh && r < kRows; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kBlockVectors; ++n) sum[r][n] = load(c + r * c_stride + n * kLanes);
  for (int64_t k = 0; k < depth; ++k, a += kDepthStride, b += kColumns) {
    F32x16 column[kBlockVectors];
#pragma GCC unroll 2
    for (int n = 0; n < kBlockVectors; ++n) column[n] = load(b + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32x16 factor = splat(a[r * kRowStride]);
#pragma GCC unroll 2
      for (int n = 0; n < kBlockVectors; ++n) sum[r][n] = fma(factor, column[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int n = 0; n < kBlockVectors; ++n) store(c + r * c_stride + n * kLanes, sum[r][n]);
}

struct VectorProducts {
  struct Scope {};
  static constexpr int64_t kElementBytes = 4;
  static constexpr int64_t kDepth = 1;
  static constexpr int64_t kSumStride = 16;
  static constexpr int64_t kPackedRows = round_up(kUnitRows, kBlockRows);  // of the queries of a unit

  Blocking blocking;
  float *queries, *keys, *values, *sums;

  KP_INLINE float* sum_row(int64_t unit, int64_t row) const {
    return sums + (unit * kUnitRows + row) * blocking.value_tiles * 16;
  }

  void allocate(BumpAllocator& allocator, const Blocking& chosen) {
    blocking = chosen;
    queries = allocator.take<float>(blocking.units * kPackedRows * blocking.score_width);
    sums = allocator.take<float>(blocking.units * kUnitRows * blocking.value_tiles * 16);
    keys = allocator.take<float>(blocking.keys * blocking.score_width);
    values = allocator.take<float>(blocking.keys * blocking.value_tiles * 16);
  }

  void pack_queries(int64_t unit, const char* const* rows, Dtype dtype, int64_t first, int64_t width) {
    with_float(dtype, [&](auto element) {
      for (int64_t r = 0; r < kUnitRows; r += kLanes)
        each_column<decltype(element)>(rows + r, width, [&](int64_t d, F32x16 column) {
          float numbers[kLanes];
          store(numbers, column);
          constexpr int kSide = kLanes % kBlockRows == 0 ? kBlockRows : 1;  // that lie side by side
          for (int i = 0; i < kLanes; i += kSide)
            __builtin_memcpy(query(unit, r + i) + (first + d) * kBlockRows, numbers + i,
                             kSide * sizeof(float));
        });
    });
  }

  void pack_keys(const char* const* rows, int64_t count, Dtype dtype, int64_t first, int64_t width) {
    of_dtype(dtype, [&](auto element) {
      for (int64_t j = 0; j < count; j += kLanes)
        transpose_keys<decltype(element)>(rows + j, j, first, width);
    });
  }

  void pack_values(const char* const* rows, int64_t count, Dtype dtype, int64_t width) {
    of_dtype(dtype, [&](auto element) {
      for (int64_t j = 0; j < count; ++j) {
        const auto* row = reinterpret_cast<const decltype(element)*>(rows[j]);
        for (int64_t d = 0; d < blocking.value_tiles * 16; d += kLanes)
          store(value(j, d), row && d < width ? load(row + d, lanes_left(width - d)) : zero());
      }
    });
  }

  void score(int64_t unit, int64_t rows, int64_t begin, int64_t end, float* scores) const {
    const int64_t width = blocking.score_width;
    for (int64_t j = begin; j < end; j += kColumns)
      each_block(rows, [&](int64_t r, auto count) {
        row_block<count.value, 1, kBlockRows>(query(unit, r), keys + j * width, width,
                                              scores + r * kScoreStride + j, kScoreStride, true);
      });
  }

  KP_INLINE void store_weights(float* scores, int64_t row, int64_t key, F32x16 low, F32x16 high) const {
    float* to = scores + row * kScoreStride + key;
    store(to, low);
    store(to + kLanes, high);
  }

  void accumulate(int64_t unit, int64_t rows, int64_t begin, int64_t end, bool fresh,
                  const float* scores) const {
    const int64_t width = blocking.value_tiles * 16;
    for (int64_t d = 0; d < width; d += kColumns)
      each_block(rows, [&](int64_t r, auto count) {
        row_block<count.value, kScoreStride, 1>(scores + r * kScoreStride + begin, value(begin, d),
                                                end - begin, sum_row(unit, r) + d, width, fresh);
      });
  }

 private:
  // The first element of a packed query.
  KP_INLINE float* query(int64_t unit, int64_t row) const {
    const int64_t block = row / kBlockRows * kBlockRows;
    return queries + (unit * kPackedRows + block) * blocking.score_width + row % kBlockRows;
  }

  // Where column d, a multiple of kLanes, of a packed value stands.
  KP_INLINE float* value(int64_t key, int64_t d) const {
    return values + d / kColumns * kColumns * blocking.keys + key * kColumns + d % kColumns;
  }

  template <class Body>
  KP_INLINE static void each_block(int64_t rows, const Body& body) {
    for (int64_t r = 0; r < rows; r += kBlockRows)
      with_row_count<kBlockRows>(rows - r, [&](auto count) { body(r, count); });
  }

  template <class Body>
  KP_INLINE static void of_dtype(Dtype dtype, const Body& body) {
    if (dtype == Dtype::f8e4m3) return body(F8e4m3{});
    if (dtype == Dtype::f8e5m2) return body(F8e5m2{});
    with_float(dtype, body);
  }

  template <class E>
  void transpose_keys(const char* const* rows, int64_t j, int64_t first, int64_t width) {
    float* panel = keys + j / kColumns * kColumns * blocking.score_width + j % kColumns;
    each_column<E>(rows, width,
                   [&](int64_t d, F32x16 column) { store(panel + (first + d) * kColumns, column); });
  }

  // body(d, column) for each column of sixteen rows; those that are null are zeros.
  template <class E, class Body>
  KP_INLINE static void each_column(const char* const* rows, int64_t width, const Body& body) {
    for (int64_t d = 0; d < width; d += kLanes) {
      const int lanes = lanes_left(width - d);
      I32x16 block[16];
      for (int r = 0; r < 16; ++r)
        block[r] = rows[r] ? as_int(load(reinterpret_cast<const E*>(rows[r]) + d, lanes)) : I32x16{};
      transpose(block);
      for (int i = 0; i < lanes; ++i) body(d + i, as_float(block[i]));
    }
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
