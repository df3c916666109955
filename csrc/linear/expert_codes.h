// How rows of floats are multiplied with the float8 weights of their experts: on vectors, or on tiles of bf16. Engines
// of project() in experts.h, made of the parts of fp8_linear.
#pragma once

#include "linear/coded_tiles.h"
#include "linear/expert_products.h"
#include "linear/fp8_codes.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(moe_codes_few);
KP_PATH(moe_codes_many);

// A call of fp8_linear for one expert; its rows are the engine's.
struct CodeCall {
  const View data, scales, bias, none;
  const Fp8LinearArguments arguments;

  CodeCall(const ExpertWeights& weights, int64_t expert, const View& out)
      : data(entry_of(weights.data, expert)),
        scales(entry_of(weights.scale, expert)),
        bias(entry_of(weights.bias, expert)),
        arguments{.x = none,
                  .data = data,
                  .scales = scales,
                  .block_n = weights.block_n,
                  .block_k = weights.block_k,
                  .bias = bias,
                  .out = out} {}
  CodeCall(const CodeCall&) = delete;
};

struct VectorCodeExperts : VectorEngine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    mark(block.rows <= kRows ? paths::moe_codes_few : paths::moe_codes_many);
    const CodeCall call(weights, block.expert, out);
    const VectorProduct<CodedPanels<Fp8Codes>, float> product(call.data, call.bias, out, {call.arguments});
    product.multiply_panels(reinterpret_cast<const float*>(packed), block.first, block.rows, begin, end);
  }
};

struct CodeTiles : CodedProduct<Fp8Codes, CodeTiles, FloatTiles> {
  CodeTiles(const CodeCall& call, Bf16* room)
      : CodedProduct(call.arguments, room, call.data, call.bias, call.arguments.out) {}

  static void mark_way(bool few, bool) { mark(few ? paths::moe_codes_few : paths::moe_codes_many); }
};

struct TileCodeExperts : TileEngine {
  void multiply(const ExpertRows& block, const char* packed, int64_t begin, int64_t end) const {
    const CodeCall call(weights, block.expert, out);
    auto* room = static_cast<char*>(thread_scratch(CodeTiles::decoded_bytes() + spilled_bytes()));
    multiply_spilling(CodeTiles(call, reinterpret_cast<Bf16*>(room)), packed, block.first, block.rows, begin,
                      end, room + CodeTiles::decoded_bytes());
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
