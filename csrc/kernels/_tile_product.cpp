// The product of tiles by itself, for its tests.
#include "kernels/_tile_product.h"

#include "tiles/tile_block.h"

namespace kernelpair::KP_TIER {

void _tile_product(const TileProductArguments& call) {
  const View &a = call.a, &b = call.b, &c = call.c;
  const int64_t M = c.sizes[0], N = c.sizes[1], K = a.sizes[1];
  const TileShape shape{static_cast<int>(M), static_cast<int>(N)};
  TileScope scope(shape);
  const BlockSums sums{static_cast<float*>(c.data), 0, 0, 4 * N};
  const auto left = [&](int, int64_t step) {
    return TilePlace{static_cast<char*>(a.data) + 64 * step, 2 * K};
  };
  const auto right = [&](int, int64_t step) {
    return TilePlace{static_cast<char*>(b.data) + 64 * N * step, 4 * N};
  };
  block_product<1, 1>(shape, left, right, K / 32, &sums, sums);
}

}  // namespace kernelpair::KP_TIER
