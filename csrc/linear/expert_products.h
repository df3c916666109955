// How rows of floats are packed and multiplied with the weights of their experts, on vectors or on tiles of bf16:
// engines of project() in experts.h. The products are those of packed_linear and fp8_linear, compiled there.
#pragma once

#include "kernels/fp8_linear.h"
#include "kernels/packed_linear.h"
#include "linear/experts.h"
#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(moe_vectors_few);
KP_PATH(moe_vectors_many);
KP_PATH(moe_tiles_few);
KP_PATH(moe_tiles_many);
KP_PATH(moe_codes_few);
KP_PATH(moe_codes_many);

// Work of a thread at least: what panel_grain of parts.h says, in rows of one panel.
KP_INLINE int64_t expert_grain(int64_t K, int64_t rate) {
  return (int64_t{1} << 22) * rate / (kPanelColumns * K) + 1;
}

// Rows as packed_linear's vectors read them, in fp32.
struct VectorEngine {
  static constexpr bool kOfBytes = false, kTiles = false;
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
  void pack(const Source& source, const ExpertRows& part, int64_t, char* to) const {
    pack_row_block(source, part.first, part.rows, reinterpret_cast<float*>(to));
  }
};

// Rows of bf16 as tiles read them.
struct TileEngine {
  static constexpr bool kOfBytes = false, kTiles = true;
  static constexpr int64_t kRows = kTileRows;
  const ExpertWeights& weights;
  const View& out;  // [rows, N] f32
  int64_t steps = weights.data.sizes[2];

  static int64_t group_bytes(const ExpertWeights& weights) { return weights.data.sizes[2] * kTileBytes; }
  int64_t panels() const { return weights.data.sizes[1]; }
  int64_t grain() const { return expert_grain(steps * kBlockK, 8); }

  // The tail of k is 0. Rows past the end stay as they are: nobody reads their sums.
  template <class Source>
  void pack(const Source& source, const ExpertRows& part, int64_t rows, char* to) const {
    const int64_t K = source.columns(), step = row_tile_bytes(rows);
    for (int64_t r = 0; r < part.rows; ++r) {
      const auto row = source.row(part.first + r);
      for (int64_t s = 0; s < steps; ++s) {
        auto* line = reinterpret_cast<Bf16*>(to + s * step + r * 64);
        const int64_t inside = K - s * kBlockK;
        __builtin_memset(line, 0, 64);
        store(line, row(s * kBlockK, lanes_left(inside)));
        if (inside > kLanes) store(line + kLanes, row(s * kBlockK + kLanes, lanes_left(inside - kLanes)));
      }
    }
  }
};

template <class Engine>
PanelRun run_of(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) {
  return {Engine::kTiles, packed, block.first, block.rows, begin, end};
}

// Weights of floats.
template <class Engine>
struct FloatExperts : Engine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    const bool few = block.rows <= Engine::kRows;
    if (Engine::kTiles)
      mark(few ? paths::moe_tiles_few : paths::moe_tiles_many);
    else
      mark(few ? paths::moe_vectors_few : paths::moe_vectors_many);
    const View weight = entry_of(this->weights.data, block.expert);
    const View bias = entry_of(this->weights.bias, block.expert);
    packed_linear_panels({.layer = {.x = kAbsent, .packed_weight = weight, .bias = bias, .out = this->out},
                          .run = run_of<Engine>(block, packed, begin, end)});
  }
};

// Weights of float8 codes.
template <class Engine>
struct CodeExperts : Engine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    mark(block.rows <= Engine::kRows ? paths::moe_codes_few : paths::moe_codes_many);
    const ExpertWeights& weights = this->weights;
    const View data = entry_of(weights.data, block.expert), scales = entry_of(weights.scale, block.expert);
    const View bias = entry_of(weights.bias, block.expert);
    fp8_linear_panels({.layer = {.x = kAbsent,
                                 .data = data,
                                 .scales = scales,
                                 .block_n = weights.block_n,
                                 .block_k = weights.block_k,
                                 .bias = bias,
                                 .out = this->out},
                       .run = run_of<Engine>(block, packed, begin, end)});
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
