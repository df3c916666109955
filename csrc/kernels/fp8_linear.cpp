// fp8_linear: x [..., K] times a packed weight of float8 codes with a scale for each of its blocks, plus bias,
// with fp32 sums and one rounding. The products are those of packed_linear: bf16 takes tiles where the tier has
// them, everything else vectors. A slice of a panel is decoded before it is multiplied, once for up to 128 rows
// on tiles and 96 on vectors.
#include "kernels/fp8_linear.h"

#include "linear/fp8_codes.h"
#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kFewSteps = 16;  // of a panel and up to 16 rows of x: 48 KiB, half of it still in L1

KP_PATH(fp8_tiles_few);
KP_PATH(fp8_tiles_whole);
KP_PATH(fp8_tiles_slices);
KP_PATH(fp8_vectors_few);
KP_PATH(fp8_vectors_many);
KP_PATH(fp8_vectors_slices);

struct TileFp8 : Bf16Tiles<TileFp8> {
  static constexpr bool kDecodes = true;
  static constexpr int64_t kStepBytes = kTileBytes;  // codes of one byte

  const Fp8LinearArguments& call;

  explicit TileFp8(const Fp8LinearArguments& arguments)
      : Bf16Tiles(arguments.x, arguments.data, arguments.bias, arguments.out), call(arguments) {}

  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::fp8_tiles_few : sliced ? paths::fp8_tiles_slices : paths::fp8_tiles_whole);
  }

  // Decoded: at most kSliceSteps of them at a time.
  DenseTiles panel_tiles(int64_t p, int64_t step, int64_t count) const {
    auto* tiles = static_cast<Bf16*>(thread_scratch(kSliceSteps * 2 * kTileBytes));
    PanelScales scales(call, p);
    decode_blocks(reinterpret_cast<const F8e4m3*>(panel(p, step)), step * kBlockK, count, scales, tiles);
    return {tiles, kTileBytes, 2 * kTileBytes};
  }

  // Up to sixteen rows: sums leave the tiles between slices that are short enough for L1.
  void multiply_few(const char* x_tiles, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    const TileShape shape{static_cast<int>(rows), kTileRows};
    TileScope scope(shape);
    alignas(64) float sums[512];
    const BlockSums kept{sums};
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t step = 0; step < steps; step += kFewSteps) {
        const int64_t count = least(steps - step, kFewSteps);
        const DenseTiles b = panel_tiles(p, step, count);
        block_product<1, 2>(shape, DenseTiles{x_tiles + step * kTileBytes, 0, kTileBytes}, b, count,
                            step ? &kept : nullptr, kept);
      }
      finish(sums, first, rows, p);
    }
  }
};

struct Fp8Panels {
  using Element = F8e4m3;
  static constexpr bool kStraight = false;

  const Fp8LinearArguments& call;

  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::fp8_vectors_few : sliced ? paths::fp8_vectors_slices : paths::fp8_vectors_many);
  }

  const float* widened(const Element* codes, int64_t p, int64_t block, int64_t count, float* to) const {
    PanelScales scales(call, p);
    decode_blocks(codes, block * kBlockK, count, scales, to);
    return to;
  }
};

}  // namespace

void fp8_linear(const Fp8LinearArguments& call) {
  if (call.out.sizes[0] == 0) return;
  if (kHasTiles && call.x.dtype == Dtype::bf16) return TileFp8(call).run();
  with_float(call.x.dtype, [&](auto element) {
    VectorLinear<decltype(element), Fp8Panels>(call.x, call.data, call.bias, call.out, {call}).run();
  });
}

}  // namespace kernelpair::KP_TIER
