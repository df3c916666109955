// Products of software tiles with the bits of the hardware, compiled once for any CPU.
//
// c += a b over `depth` dwords of a row of `a`: rows 0 .. rows - 1 of c, all sixteen columns. Who has fewer
// columns clears the rest afterwards, as the hardware does.
//
// Floating point, for one output: e = fma(a[2k], b[2k], e) and o = fma(a[2k+1], b[2k+1], o), both from +0
// over k; then c = c + (e + o). Round to nearest even; denormal float32 operands, intermediates and results
// become signed zero. Denormal halves are numbers. Integers: exact, modulo 2^32.
#pragma once

#include <cstdint>

namespace kernelpair::soft_tile {

constexpr int kTiles = 8, kMaxRows = 16, kRowBytes = 64, kLanes = 16;

struct Tile {
  alignas(64) unsigned char row[kMaxRows][kRowBytes];
};

using Product = void(Tile& c, const Tile& a, const Tile& b, int rows, int depth);

Product bf16_sums, half_sums;
// Bytes of a, then of b: unsigned or signed.
Product uu8_sums, us8_sums, su8_sums, ss8_sums;

}  // namespace kernelpair::soft_tile
