// Software tiles with the bits of AMX hardware, compiled once for any CPU.
//
// TDPBF16PS, for one output: e = fma(a[2k], b[2k], e) and o = fma(a[2k+1], b[2k+1], o), both from +0 over k;
// then c = c + (e + o). Round to nearest even; denormal inputs, intermediates and results become signed zero,
// which the flush bits of MXCSR do here as well.
#include "tiles/soft_tile.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kernelpair::soft_tile {
namespace {

constexpr int kTiles = 8, kMaxRows = 16, kRowBytes = 64, kLanes = 16;

struct Tile {
  alignas(64) unsigned char row[kMaxRows][kRowBytes];
};

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

inline __attribute__((always_inline)) float wide(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

// One row of C: sixteen outputs side by side, so that the compiler makes vectors of whatever width the target
// has.
inline __attribute__((always_inline)) void row_product(float* c, const uint16_t* a, const Tile& b,
                                                       int pairs) {
  float even[kLanes] = {}, odd[kLanes] = {};
  for (int k = 0; k < pairs; ++k) {
    const float a_even = wide(a[2 * k]), a_odd = wide(a[2 * k + 1]);
    uint32_t dwords[kLanes];
    std::memcpy(dwords, b.row[k], sizeof dwords);
    float b_even[kLanes], b_odd[kLanes];
    // odd, even -> even, odd.
    for (int n = 0; n < kLanes; ++n) dwords[n] = (dwords[n] << 16) | (dwords[n] >> 16);
    for (int n = 0; n < kLanes; ++n) b_even[n] = wide(static_cast<uint16_t>(dwords[n] >> 16));
    for (int n = 0; n < kLanes; ++n) b_odd[n] = wide(static_cast<uint16_t>(dwords[n]));
    for (int n = 0; n < kLanes; ++n) even[n] = __builtin_fmaf(a_even, b_even[n], even[n]);
    for (int n = 0; n < kLanes; ++n) odd[n] = __builtin_fmaf(a_odd, b_odd[n], odd[n]);
  }
  for (int n = 0; n < kLanes; ++n) c[n] = c[n] + (even[n] + odd[n]);
}

inline __attribute__((always_inline)) void tile_product(Tile& c, const Tile& a, const Tile& b, int rows,
                                                        int pairs) {
  for (int m = 0; m < rows; ++m) {
    float c_row[kLanes];
    uint16_t a_row[2 * kLanes];
    std::memcpy(c_row, c.row[m], sizeof c_row);
    std::memcpy(a_row, a.row[m], sizeof a_row);
    row_product(c_row, a_row, b, pairs);
    std::memcpy(c.row[m], c_row, sizeof c_row);
  }
}

using Product = void (*)(Tile&, const Tile&, const Tile&, int rows, int pairs);

// fmaf of the C library where the CPU has no FMA: the same bits, slowly.
void product_any(Tile& c, const Tile& a, const Tile& b, int rows, int pairs) {
  tile_product(c, a, b, rows, pairs);
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) void product_fma(Tile& c, const Tile& a, const Tile& b, int rows,
                                                     int pairs) {
  tile_product(c, a, b, rows, pairs);
}

Product choose_product() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? product_fma : product_any;
}

struct FlushScope {  // round to nearest even, exceptions masked, denormals to zero both ways
  unsigned before = _mm_getcsr();
  FlushScope() { _mm_setcsr(0x1f80 | 0x8000 | 0x0040); }
  ~FlushScope() { _mm_setcsr(before); }
};

#else

Product choose_product() { return product_any; }

struct FlushScope {};

#endif

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

void bf16_product(int c, int a, int b) {
  require(state.configured && c != a && c != b && a != b);
  const int pairs = bytes_of(a) / 4;
  require(rows_of(c) == rows_of(a) && bytes_of(c) == bytes_of(b) && rows_of(b) == pairs);
  static const Product product = choose_product();
  FlushScope flush;
  product(state.tiles[c], state.tiles[a], state.tiles[b], rows_of(c), pairs);
  if (bytes_of(c) < kRowBytes)  // columns past the tile stay zero
    for (int m = 0; m < rows_of(c); ++m)
      std::memset(state.tiles[c].row[m] + bytes_of(c), 0, kRowBytes - bytes_of(c));
}

}  // namespace kernelpair::soft_tile
