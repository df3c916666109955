// How rows of floats are multiplied with the weights of their experts: on vectors, or on tiles of bf16. Engines of
// project() in experts.h.
#pragma once

#include "linear/experts.h"
#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(moe_vectors_few);
KP_PATH(moe_vectors_many);
KP_PATH(moe_tiles_few);
KP_PATH(moe_tiles_many);

// Work of a thread at least: what panel_grain of parts.h says, in rows of one panel.
KP_INLINE int64_t expert_grain(int64_t K, int64_t rate) {
  return (int64_t{1} << 22) * rate / (kPanelColumns * K) + 1;
}

// Rows as packed_linear's vectors read them, in fp32.
struct VectorEngine {
  static constexpr bool kOfBytes = false;
  static constexpr int64_t kRows = kRowBlock;
  const ExpertWeights& weights;
  const View& out;  // [rows, N] f32
  int64_t width = weights.data.sizes[2] * kBlockK;

  static int64_t group_bytes(const ExpertWeights& weights) {
    return 4 * kRows * weights.data.sizes[2] * kBlockK;
  }
  int64_t panels() const { return weights.data.sizes[1]; }
  int64_t grain() const { return expert_grain(width, 1); }

  template <class Source>
  void pack(const Source& source, int64_t first, int64_t live, char* to) const {
    with_row_count<kRowBlock>(live, [&](auto count) {
      pack_row_block<decltype(count)::value>(source, first, live, reinterpret_cast<float*>(to));
    });
  }
};

template <class T>
struct VectorExperts : VectorEngine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    mark(block.rows <= kRows ? paths::moe_vectors_few : paths::moe_vectors_many);
    const View weight = entry_of(weights.data, block.expert), bias = entry_of(weights.bias, block.expert);
    const VectorProduct<PackedPanels<T>, float> product(weight, bias, out);
    product.multiply_panels(reinterpret_cast<const float*>(packed), block.first, block.rows, begin, end);
  }
};

// The rows of one expert on tiles; sums end as floats.
template <class Kind>
struct FloatTiles : PanelTiles<Kind> {
  using Product = Bf16Product;
  using PanelTiles<Kind>::out, PanelTiles<Kind>::N;
  const View& bias;

  FloatTiles(const View& weight, const View& expert_bias, const View& result)
      : PanelTiles<Kind>(weight, result), bias(expert_bias) {}

  void finish(const float* sums, int64_t first, int64_t rows, int64_t p) const {
    const PanelBias panel_bias(bias, p * kPanelColumns, N);
    for (int64_t r = 0; r < rows; ++r) {
      const float* low = sums + r / kTileRows * 512 + r % kTileRows * kTileRows;
      store_row(static_cast<float*>(out.data) + (first + r) * N + p * kPanelColumns, load(low),
                load(low + kTileFloats), panel_bias, N - p * kPanelColumns);
    }
  }
};

struct ExpertTiles : FloatTiles<ExpertTiles> {
  using FloatTiles::FloatTiles;

  static void mark_way(bool few, bool) { mark(few ? paths::moe_tiles_few : paths::moe_tiles_many); }
};

// Panels whose sums wait between slices of k: 256 KiB a thread.
constexpr int64_t kSpillPanels = 16, kSpilledFloats = kPassRows / kPairRows * kBlockFloats;

KP_INLINE int64_t spilled_bytes() { return 4 * kSpillPanels * kSpilledFloats; }

template <class Tiles>
void multiply_spilling(const Tiles& product, const char* packed, int64_t first, int64_t rows, int64_t begin,
                       int64_t end, void* room) {
  auto* spilled = static_cast<float*>(room);
  for (int64_t p = begin; p < end; p += kSpillPanels)
    product.multiply_panels(packed, first, rows, p, least(p + kSpillPanels, end),
                            spilled - p * kSpilledFloats);
}

// Rows of bf16 as tiles read them.
struct TileEngine {
  static constexpr bool kOfBytes = false;
  static constexpr int64_t kRows = kTileRows;
  const ExpertWeights& weights;
  const View& out;  // [rows, N] f32
  int64_t steps = weights.data.sizes[2];

  static int64_t group_bytes(const ExpertWeights& weights) { return weights.data.sizes[2] * kTileBytes; }
  int64_t panels() const { return weights.data.sizes[1]; }
  int64_t grain() const { return expert_grain(steps * kBlockK, 8); }

  // The tail of k is 0. Rows past the end stay as they are: nobody reads their sums.
  template <class Source>
  void pack(const Source& source, int64_t first, int64_t live, char* to) const {
    const int64_t K = source.columns();
    for (int64_t r = 0; r < live; ++r) {
      const auto row = source.row(first + r);
      for (int64_t s = 0; s < steps; ++s) {
        auto* line = reinterpret_cast<Bf16*>(to + s * kTileBytes + r * 64);
        const int64_t inside = K - s * kBlockK;
        __builtin_memset(line, 0, 64);
        store(line, row(s * kBlockK, lanes_left(inside)));
        if (inside > kLanes) store(line + kLanes, row(s * kBlockK + kLanes, lanes_left(inside - kLanes)));
      }
    }
  }
};

struct TileExperts : TileEngine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    const View weight = entry_of(weights.data, block.expert), bias = entry_of(weights.bias, block.expert);
    multiply_spilling(ExpertTiles(weight, bias, out), packed, block.first, block.rows, begin, end,
                      thread_scratch(spilled_bytes()));
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
