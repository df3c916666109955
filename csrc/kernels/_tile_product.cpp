// The tile layer by itself, for its tests.
#include "common/tile.h"

namespace kernelpair::KP_TIER {

void _tile_product(const View& a, const View& b, const View& c) {
  const int64_t M = c.sizes[0], N = c.sizes[1], K = a.sizes[1];
  TileShapes shapes;
  shapes.rows[0] = shapes.rows[1] = M;
  shapes.row_bytes[0] = shapes.row_bytes[2] = 4 * N;
  TileScope scope(shapes);
  tile_load<0>(c.data, 4 * N);
  for (int64_t step = 0; step < K / 32; ++step) {
    tile_load<1>(static_cast<char*>(a.data) + 64 * step, 2 * K);
    tile_load<2>(static_cast<char*>(b.data) + 64 * N * step, 4 * N);
    tile_bf16<0, 1, 2>();
  }
  tile_store<0>(c.data, 4 * N);
}

}  // namespace kernelpair::KP_TIER
