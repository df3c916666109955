// Products with a weight of float8 codes and scales of its blocks, which is decoded slice by slice before it is
// multiplied: on tiles, over a Base that says where rows come from and what becomes of sums, and on vectors.
#pragma once

#include "linear/fp8_codes.h"
#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"
#include "tiles/dot_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kFewSteps = 16;  // of a panel and up to 16 rows of x: 48 KiB, half of it still in L1

KP_PATH(fp8_dots_one);

template <class Kind, template <class> class Base>
struct Fp8Tiles : Base<Kind> {
  static constexpr bool kDecodes = true;
  static constexpr int64_t kStepBytes = kTileBytes;  // codes of one byte
  using Base<Kind>::panel, Base<Kind>::steps;

  const Fp8LinearArguments& call;
  Bf16* const room;  // of decoded_bytes(); without it a thread's scratch

  template <class... Parts>
  Fp8Tiles(const Fp8LinearArguments& arguments, Bf16* decode_to, const Parts&... parts)
      : Base<Kind>(parts...), call(arguments), room(decode_to) {}

  // Whether no block of columns ends within a step.
  const bool scale_sums = call.block_k % kBlockK == 0 || call.scales.sizes[1] == 1;

  static int64_t decoded_bytes() { return kSliceSteps * 2 * kTileBytes; }
  Bf16* decoded() const { return room ? room : static_cast<Bf16*>(thread_scratch(decoded_bytes())); }

  // Decoded: at most kSliceSteps of them at a time.
  DenseTiles panel_tiles(int64_t p, int64_t step, int64_t count) const {
    Bf16* tiles = decoded();
    PanelScales scales(call, p);
    decode_blocks(reinterpret_cast<const F8e4m3*>(panel(p, step)), step * kBlockK, count, scales, tiles);
    return {tiles, kTileBytes, 2 * kTileBytes};
  }

  // Up to sixteen rows: the sums of slices that are short enough for L1 take their scale, where they have one.
  void multiply_few(const char* x_tiles, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    if constexpr (kHasDotProducts)
      if (rows == 1 && scale_sums) return multiply_one(x_tiles, first, begin, end);
    const TileShape shape{static_cast<int>(rows), kTileRows};
    TileScope scope(shape);
    Bf16* tiles = decoded();
    alignas(64) float sums[512], slice[512];
    for (int64_t p = begin; p < end; ++p) {
      PanelScales scales(call, p);
      for (int64_t step = 0, count; step < steps; step += count) {
        const auto* codes = reinterpret_cast<const F8e4m3*>(panel(p, step));
        count = least(steps - step, kFewSteps);
        if (scale_sums) {
          count = least(count, scales.move_to(step * kBlockK) / kBlockK);
          decode_blocks(codes, count, tiles);
        } else {
          decode_blocks(codes, step * kBlockK, count, scales, tiles);
        }
        block_product<1, 2>(shape, DenseTiles{x_tiles + step * kTileBytes, 0, kTileBytes},
                            DenseTiles{tiles, kTileBytes, 2 * kTileBytes}, count, nullptr, {slice});
        for (int half = 0; half < 2; ++half) {
          const F32x16 scale = scale_sums ? scales.half(half) : splat(1.0f);
          add_slice(sums + half * kTileFloats, slice + half * kTileFloats, rows, scale, step == 0);
        }
      }
      this->finish(sums, first, rows, p);
    }
  }

  // One row: numbers go from their codes into the products, in four chains.
  void multiply_one(const char* x_tiles, int64_t first, int64_t begin, int64_t end) const {
    mark(paths::fp8_dots_one);
    alignas(64) float sums[512];
    for (int64_t p = begin; p < end; ++p) {
      PanelScales scales(call, p);
      F32x16 totals[2] = {};
      for (int64_t step = 0, count; step < steps; step += count) {
        count = least(steps - step, scales.move_to(step * kBlockK) / kBlockK);
        F32x16 chains[2][2] = {};
        const auto* codes = reinterpret_cast<const F8e4m3*>(panel(p, step));
        for (int64_t s = step; s < step + count; ++s, codes += kBlockElements)
          add_step(x_tiles + s * kTileBytes, codes, chains);
        for (int half = 0; half < 2; ++half)
          totals[half] = fma(chains[half][0] + chains[half][1], scales.half(half), totals[half]);
      }
      store(sums, totals[0]);
      store(sums + kTileFloats, totals[1]);
      this->finish(sums, first, 1, p);
    }
  }

  // The first row of a tile of x, each pair of its k in all lanes, times a block of codes.
  KP_INLINE static void add_step(const char* x, const F8e4m3* codes, F32x16 (&chains)[2][2]) {
    for (int pair = 0; pair < kBlockK / 2; pair += 2)
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd, codes += kPair) {
        int32_t both;
        __builtin_memcpy(&both, x + 4 * (pair + odd), sizeof both);
        prefetch_codes(codes);
        prefetch_codes(codes + kBlockElements / 2);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const I32x16 numbers = load_numbers(codes + half * kBlockElements / 2);
          chains[half][odd] = dot_pairs(chains[half][odd], splat_int(both), numbers);
        }
      }
  }

  static void add_slice(float* sums, const float* slice, int64_t rows, F32x16 scale, bool fresh) {
    for (int64_t at = 0; at < rows * kTileRows; at += kTileRows)
      store(sums + at, fma(load(slice + at), scale, fresh ? zero() : load(sums + at)));
  }
};

struct Fp8Panels {
  using Element = F8e4m3;
  static constexpr bool kStraight = false;

  const Fp8LinearArguments& call;

  const float* widened(const Element* codes, int64_t p, int64_t block, int64_t count, float* to) const {
    PanelScales scales(call, p);
    decode_blocks(codes, block * kBlockK, count, scales, to);
    return to;
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
