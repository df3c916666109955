// How rows of bytes are multiplied with the int8 weights of their experts: on vectors, or on tiles. Engines of
// project() in experts.h, made of the parts of int8_linear.
#pragma once

#include "linear/expert_products.h"
#include "linear/int8_tiles.h"
#include "linear/int8_vectors.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(moe_bytes_few);
KP_PATH(moe_bytes_many);

// Rows of a projection in bytes, in the order of the sorted pairs, each with its scale.
struct QuantizedRows {
  const View& q;      // [rows, K] i8
  const View& scale;  // [rows] f32
};

// The rows `first` to `first + count` of a [rows, ...] view.
KP_INLINE View some_rows(const View& all, int64_t first, int64_t count) {
  View some = all;
  some.data = at(all, first);
  some.sizes[0] = count;
  return some;
}

// A call of int8_linear for some rows and one expert.
struct ByteCall {
  const View x, scale, data, sums, w_scale, bias, out, none;
  const Int8LinearArguments arguments{.x = x,
                                      .symmetric = true,
                                      .scale = scale,
                                      .azp = none,
                                      .data = data,
                                      .sums = sums,
                                      .w_scale = w_scale,
                                      .bias = bias,
                                      .out = out};

  ByteCall(const ExpertWeights& weights, int64_t expert, const QuantizedRows& rows, const View& result,
           int64_t first, int64_t count)
      : x(some_rows(rows.q, first, count)),
        scale(some_rows(rows.scale, first, count)),
        data(entry_of(weights.data, expert)),
        sums(entry_of(weights.sums, expert)),
        w_scale(entry_of(weights.scale, expert)),
        bias(entry_of(weights.bias, expert)),
        out(some_rows(result, first, count)) {}
  ByteCall(const ByteCall&) = delete;
};

struct ByteEngine {
  static constexpr bool kOfBytes = true;
  const ExpertWeights& weights;
  const View& out;  // [rows, N] f32
  const QuantizedRows rows;
  int64_t blocks = weights.data.sizes[2];

  int64_t panels() const { return weights.data.sizes[1]; }
  int64_t grain() const { return expert_grain(blocks * kByteBlockWidth, kHasByteTiles ? 16 : 2); }

  ChunkScales scales_of(const ExpertRows& block) const {
    ChunkScales scales;
    for (int64_t r = 0; r < block.rows; ++r) scales.of_row[r] = {*at<float>(rows.scale, block.first + r), 0};
    return scales;
  }
};

// The rows of a chunk in bytes: a token's once, and copied for all its pairs ...
template <class T>
void quantize_rows(const GatheredRows<T>& source, const SortedPairs& sorted, const QuantizedRows& rows) {
  const int64_t K = source.columns(), k = source.topk;
  parallel_for(source.x.sizes[0], (1 << 14) / K + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t made = -1;
      for (int64_t j = 0; j < k; ++j) {
        const int64_t m = sorted.place[t * k + j];
        if (m < 0) continue;
        if (made < 0) {
          *at<float>(rows.scale, m) = quantize_row(at<T>(source.x, t), K, true, at<int8_t>(rows.q, m)).scale;
          made = m;
        } else {
          *at<float>(rows.scale, m) = *at<float>(rows.scale, made);
          __builtin_memcpy(at<int8_t>(rows.q, m), at<int8_t>(rows.q, made), K);
        }
      }
    }
  });
}

// ... or each for itself.
template <class Source>
void quantize_rows(const Source& source, const SortedPairs&, const QuantizedRows& rows) {
  const int64_t K = source.columns();
  parallel_for(rows.q.sizes[0], (1 << 14) / K + 1, [&](int64_t begin, int64_t end) {
    auto* floats = static_cast<float*>(thread_scratch(4 * K));
    for (int64_t m = begin; m < end; ++m) {
      const auto row = source.row(m);
      for (int64_t k = 0; k < K; k += kLanes) store(floats + k, row(k, lanes_left(K - k)), lanes_left(K - k));
      *at<float>(rows.scale, m) = quantize_row(floats, K, true, at<int8_t>(rows.q, m)).scale;
    }
  });
}

struct VectorByteExperts : ByteEngine {
  static constexpr int64_t kRows = kByteRows;

  static int64_t group_bytes(const ExpertWeights& weights) {
    return 4 * kRows * VectorInt8::packed_row_dwords(weights.data.sizes[2]);
  }

  KP_NOINLINE void pack(const QuantizedRows&, const ExpertRows& part, int64_t, char* to) const {
    ChunkScales unused;
    const ByteCall call(weights, 0, rows, out, part.first, part.rows);
    VectorInt8{call.arguments, unused}.pack_rows({0, part.rows, reinterpret_cast<uint32_t*>(to)}, 0,
                                                 part.rows);
  }

  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    mark(block.rows <= kRows ? paths::moe_bytes_few : paths::moe_bytes_many);
    ChunkScales scales = scales_of(block);
    const ByteCall call(weights, block.expert, rows, out, block.first, block.rows);
    auto* quads = reinterpret_cast<uint32_t*>(const_cast<char*>(packed));
    const int64_t most_experts = least(rows.q.sizes[0], weights.data.sizes[0]);
    VectorInt8{.call = call.arguments,
               .scales = scales,
               .stream = byte_distance(most_experts * element_count(call.data))}
        .multiply_panels({0, block.rows, quads}, begin, end);
  }
};

struct TileByteExperts : ByteEngine {
  static constexpr int64_t kRows = kTileRows;

  static int64_t group_bytes(const ExpertWeights& weights) { return weights.data.sizes[2] * kTileBytes; }

  KP_NOINLINE void pack(const QuantizedRows&, const ExpertRows& part, int64_t of_rows, char* to) const {
    ChunkScales unused;
    const ByteCall call(weights, 0, rows, out, part.first, part.rows);
    TileInt8(call.arguments, unused).pack_tile_rows(0, part.rows, to, row_tile_bytes(of_rows));
  }

  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    mark(block.rows <= kRows ? paths::moe_bytes_few : paths::moe_bytes_many);
    ChunkScales scales = scales_of(block);
    const ByteCall call(weights, block.expert, rows, out, block.first, block.rows);
    TileInt8(call.arguments, scales)
        .multiply_run({true, packed, 0, block.rows, begin, end}, thread_scratch(TileInt8::run_bytes()));
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
