#include "trap/tiles.h"

#include <cstring>

namespace kernelpair::trap {
namespace {

using soft_tile::kMaxRows;
using soft_tile::kRowBytes;
using soft_tile::kTiles;
using soft_tile::Tile;

// Faults where the bytes cannot be written, and leaves them as they are.
void reach(char* first, int count) {
  if (!count) return;
  asm volatile("lock orb $0, %0" : "+m"(first[0]));
  asm volatile("lock orb $0, %0" : "+m"(first[count - 1]));
}

template <class T>
bool all_zero(const T* first, int count) {
  for (int i = 0; i < count; ++i)
    if (first[i]) return false;
  return true;
}

bool legal(const Config& config) {
  if (config.palette > 1) return false;
  if (config.palette == 0) return true;  // the rest is not looked at
  for (int t = 0; t < kTiles; ++t) {
    if (config.row_bytes[t] > kRowBytes || config.rows[t] > kMaxRows) return false;
    if ((config.rows[t] == 0) != (config.row_bytes[t] == 0)) return false;
  }
  return all_zero(config.reserved, 14) && all_zero(config.row_bytes + kTiles, kTiles) &&
         all_zero(config.rows + kTiles, kTiles);
}

Outcome load_config(const char* address, Tiles& tiles) {
  Config config;
  std::memcpy(&config, address, sizeof config);
  if (!legal(config)) return Outcome::protection;
  if (config.palette == 0) config = {};
  std::memset(tiles.tile, 0, sizeof tiles.tile);
  tiles.config = config;
  return Outcome::done;
}

Outcome store_config(char* address, const Tiles& tiles) {
  reach(address, sizeof(Config));
  std::memcpy(address, &tiles.config, sizeof(Config));
  return Outcome::done;
}

Outcome release(Tiles& tiles) {
  tiles.config = {};
  std::memset(tiles.tile, 0, sizeof tiles.tile);
  return Outcome::done;
}

bool configured(const Tiles& tiles) { return tiles.config.palette != 0; }

// For a load, a store and a product: some rows of whole dwords.
bool usable(const Tiles& tiles, int t) {
  return configured(tiles) && tiles.config.rows[t] && tiles.config.row_bytes[t] % 4 == 0;
}

Outcome zero(int t, Tiles& tiles) {
  if (!configured(tiles)) return Outcome::undefined;
  std::memset(&tiles.tile[t], 0, sizeof(Tile));
  tiles.config.start_row = 0;
  return Outcome::done;
}

Outcome load(const Instruction& it, Tiles& tiles) {
  Config& config = tiles.config;
  if (!usable(tiles, it.tile) || config.start_row >= config.rows[it.tile]) return Outcome::undefined;
  const int first = config.start_row, rows = config.rows[it.tile], bytes = config.row_bytes[it.tile];
  for (int r = first; r < rows; ++r) {
    std::memcpy(tiles.incoming.row[r], it.address + r * it.stride, bytes);
    std::memset(tiles.incoming.row[r] + bytes, 0, kRowBytes - bytes);
  }
  Tile& tile = tiles.tile[it.tile];
  std::memcpy(tile.row[first], tiles.incoming.row[first], (rows - first) * kRowBytes);
  std::memset(tile.row[0] + rows * kRowBytes, 0, (kMaxRows - rows) * kRowBytes);
  config.start_row = 0;
  return Outcome::done;
}

Outcome store(const Instruction& it, Tiles& tiles) {
  Config& config = tiles.config;
  if (!usable(tiles, it.tile) || config.start_row >= config.rows[it.tile]) return Outcome::undefined;
  const int rows = config.rows[it.tile], bytes = config.row_bytes[it.tile];
  for (int r = config.start_row; r < rows; ++r) reach(it.address + r * it.stride, bytes);
  for (int r = config.start_row; r < rows; ++r)
    std::memcpy(it.address + r * it.stride, tiles.tile[it.tile].row[r], bytes);
  config.start_row = 0;
  return Outcome::done;
}

soft_tile::Product* sums_of(Kind kind) {
  switch (kind) {
    case Kind::bf16: return soft_tile::bf16_sums;
    case Kind::fp16: return soft_tile::half_sums;
    case Kind::uu8: return soft_tile::uu8_sums;
    case Kind::us8: return soft_tile::us8_sums;
    case Kind::su8: return soft_tile::su8_sums;
    default: return soft_tile::ss8_sums;
  }
}

Outcome product(const Instruction& it, Tiles& tiles) {
  const int c = it.tile, a = it.left, b = it.right;
  if (c == a || c == b || a == b) return Outcome::undefined;
  if (!usable(tiles, c) || !usable(tiles, a) || !usable(tiles, b)) return Outcome::undefined;
  Config& config = tiles.config;
  const int rows = config.rows[c], bytes = config.row_bytes[c], depth = config.row_bytes[a] / 4;
  if (rows != config.rows[a] || bytes != config.row_bytes[b] || depth != config.rows[b])
    return Outcome::undefined;
  Tile& out = tiles.tile[c];
  sums_of(it.kind)(out, tiles.tile[a], tiles.tile[b], rows, depth);
  for (int r = 0; r < rows && bytes < kRowBytes; ++r) std::memset(out.row[r] + bytes, 0, kRowBytes - bytes);
  std::memset(out.row[0] + rows * kRowBytes, 0, (kMaxRows - rows) * kRowBytes);
  config.start_row = 0;
  return Outcome::done;
}

}  // namespace

Outcome carry_out(const Instruction& it, Tiles& tiles) {
  switch (it.kind) {
    case Kind::none: return Outcome::undefined;
    case Kind::load_config: return load_config(it.address, tiles);
    case Kind::store_config: return store_config(it.address, tiles);
    case Kind::release: return release(tiles);
    case Kind::zero: return zero(it.tile, tiles);
    case Kind::load: return load(it, tiles);
    case Kind::store: return store(it, tiles);
    default: return product(it, tiles);
  }
}

}  // namespace kernelpair::trap
