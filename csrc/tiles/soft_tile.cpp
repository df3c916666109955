// Software tiles with the bits of AMX hardware, compiled once for any CPU.
#include "tiles/soft_tile.h"

#include <cstring>

#include "tiles/soft_product.h"

namespace kernelpair::soft_tile {
namespace {

struct State {
  bool configured;
  TileShapes shapes;
  Tile tiles[kTiles];
};

thread_local State state;

// Where the hardware raises #UD or #GP.
inline void require(bool legal) {
  if (!legal) __builtin_trap();
}

int rows_of(int tile) { return state.shapes.rows[tile]; }
int bytes_of(int tile) { return state.shapes.row_bytes[tile]; }

void add_product(Product& sums, int c, int a, int b) {
  require(state.configured && c != a && c != b && a != b);
  const int dwords = bytes_of(a) / 4;
  require(rows_of(c) == rows_of(a) && bytes_of(c) == bytes_of(b) && rows_of(b) == dwords);
  sums(state.tiles[c], state.tiles[a], state.tiles[b], rows_of(c), dwords);
  if (bytes_of(c) < kRowBytes)  // columns past the tile stay zero
    for (int m = 0; m < rows_of(c); ++m)
      std::memset(state.tiles[c].row[m] + bytes_of(c), 0, kRowBytes - bytes_of(c));
}

}  // namespace

void configure(const TileShapes& shapes) {
  require(shapes.palette == 1 && shapes.start_row == 0);
  for (int t = 0; t < kTiles; ++t) require(shapes.rows[t] <= kMaxRows && shapes.row_bytes[t] <= kRowBytes);
  state.configured = true;
  state.shapes = shapes;
  std::memset(state.tiles, 0, sizeof state.tiles);
}

void release() { state.configured = false; }

void zero(int tile) {
  require(state.configured);
  std::memset(&state.tiles[tile], 0, sizeof(Tile));
}

void load(int tile, const void* data, int64_t stride) {
  zero(tile);
  for (int r = 0; r < rows_of(tile); ++r)
    std::memcpy(state.tiles[tile].row[r], static_cast<const char*>(data) + r * stride, bytes_of(tile));
}

void store(int tile, void* data, int64_t stride) {
  require(state.configured);
  for (int r = 0; r < rows_of(tile); ++r)
    std::memcpy(static_cast<char*>(data) + r * stride, state.tiles[tile].row[r], bytes_of(tile));
}

void bf16_product(int c, int a, int b) { add_product(bf16_sums, c, a, b); }
void int8_product(int c, int a, int b) { add_product(ss8_sums, c, a, b); }

}  // namespace kernelpair::soft_tile
