// Both products of prefill on float vectors, for every dtype and every tier. Operands are converted once,
// when they are packed:
//
//   queries [kBlockRows rows][d][kBlockRows]   one element at a time, spread over the lanes
//   keys    [kColumns keys][d][kColumns]       weights take the place of the scores, sums are rows
//   values  [key][dv]
#pragma once

#include "attention/prefill_plan.h"
#include "simd/dtypes.h"
#include "simd/float8.h"
#include "simd/transpose.h"

namespace kernelpair::KP_TIER {
namespace {

// 16 sums of 32 registers, enough chains to hide the latency of fma; 8 of 16; or 8 of 16 quarters.
constexpr int kBlockRows = kVectorBytes / 8, kBlockVectors = kVectorBytes == 64 ? 2 : 1;
constexpr int kColumns = kBlockVectors * kLanes;

// c (+)= a b for kBlockRows rows and kColumns columns. Element (r, k) of `a` lies at r * kRowStride + k *
// kDepthStride, both known to the compiler: the loop needs one address. Row k of `b` starts at k * b_stride,
// row r of `c` at r * c_stride.
template <int64_t kRowStride, int64_t kDepthStride>
__attribute__((noinline)) void row_block(const float* a, const float* b, int64_t b_stride, int64_t depth,
                                         float* c, int64_t c_stride, bool fresh) {
  F32x16 sum[kBlockRows][kBlockVectors];
  for (int r = 0; r < kBlockRows; ++r)
    for (int n = 0; n < kBlockVectors; ++n) sum[r][n] = fresh ? zero() : load(c + r * c_stride + n * kLanes);
  for (int64_t k = 0; k < depth; ++k, a += kDepthStride, b += b_stride) {
    F32x16 column[kBlockVectors];
    for (int n = 0; n < kBlockVectors; ++n) column[n] = load(b + n * kLanes);
    for (int r = 0; r < kBlockRows; ++r) {
      const F32x16 factor = splat(a[r * kRowStride]);
      for (int n = 0; n < kBlockVectors; ++n) sum[r][n] = fma(factor, column[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kBlockRows; ++r)
    for (int n = 0; n < kBlockVectors; ++n) store(c + r * c_stride + n * kLanes, sum[r][n]);
}

struct VectorProducts {
  struct Scope {};
  static constexpr int64_t kElementBytes = 4;
  static constexpr int64_t kDepth = 1;
  static constexpr int64_t kSumStride = 16;

  Blocking blocking;
  float *queries, *keys, *values, *sums;

  KP_INLINE float* sum_row(int64_t unit, int64_t row) const {
    return sums + (unit * kUnitRows + row) * blocking.value_tiles * 16;
  }

  void allocate(BumpAllocator& allocator, const Blocking& chosen) {
    blocking = chosen;
    queries = allocator.take<float>(blocking.units * kUnitRows * blocking.score_width);
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
          for (int i = 0; i < kLanes; i += kBlockRows)
            __builtin_memcpy(query_block(unit, r + i) + (first + d) * kBlockRows, numbers + i,
                             kBlockRows * sizeof(float));
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
    const int64_t row = blocking.value_tiles * 16;
    of_dtype(dtype, [&](auto element) {
      for (int64_t j = 0; j < count; ++j) {
        convert_row(reinterpret_cast<const decltype(element)*>(rows[j]), width, values + j * row);
        for (int64_t d = width; d < row; ++d) values[j * row + d] = 0;
      }
    });
  }

  void score(int64_t unit, int64_t rows, int64_t begin, int64_t end, float* scores) const {
    const int64_t width = blocking.score_width;
    for (int64_t j = begin; j < end; j += kColumns)
      for (int64_t r = 0; r < rows; r += kBlockRows)
        row_block<1, kBlockRows>(query_block(unit, r), keys + j * width, kColumns, width,
                                 scores + r * kScoreStride + j, kScoreStride, true);
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
      for (int64_t r = 0; r < rows; r += kBlockRows)
        row_block<kScoreStride, 1>(scores + r * kScoreStride + begin, values + begin * width + d, width,
                                   end - begin, sum_row(unit, r) + d, width, fresh);
  }

 private:
  KP_INLINE float* query_block(int64_t unit, int64_t row) const {
    return queries + (unit * kUnitRows + row / kBlockRows * kBlockRows) * blocking.score_width;
  }

  template <class Body>
  KP_INLINE static void of_dtype(Dtype dtype, const Body& body) {
    if (dtype == Dtype::f8e4m3) return body(F8e4m3{});
    if (dtype == Dtype::f8e5m2) return body(F8e5m2{});
    with_float(dtype, body);
  }

  template <class E>
  KP_INLINE static void convert_row(const E* from, int64_t width, float* to) {
    for (int64_t d = 0; d < width; d += kLanes) {
      const int lanes = lanes_left(width - d);
      store(to + d, from ? load(from + d, lanes) : zero(), lanes);
    }
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
