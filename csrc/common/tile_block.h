// The 2 x 2 tile block: 32 rows by 32 columns of fp32 in tiles 0-3, operands in tiles 4-7. Two loads feed two products, so
// operands in L1 reach 0.8-0.9 of the peak; every shape with fewer products a load costs a quarter more.
//
//   TileScope scope;
//   block_zero();
//   block_product(a, b, steps);      // C += A B over steps of 32 along k
//   block_store(c);                  // 4 KiB: tiles 00, 01, 10, 11 one after the other, 64 bytes a row
#pragma once

#include "common/tile.h"

namespace kernelpair::KP_TIER {
namespace {

// One operand: two tiles (16 rows of A each, or 16 columns of B each), how far apart their rows are and the next step lies.
struct TileOperand {
  const char* first;
  const char* second;
  int64_t row_stride;  // bytes between rows of a tile; 64 where tiles are packed
  int64_t step;        // bytes to the tile of the next 32 k; for unpacked A that is 64
};

KP_INLINE void block_zero() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}

KP_INLINE void block_load(const float* c) {
  tile_load<0>(c, 64);
  tile_load<1>(c + 256, 64);
  tile_load<2>(c + 512, 64);
  tile_load<3>(c + 768, 64);
}

KP_INLINE void block_store(float* c) {
  tile_store<0>(c, 64);
  tile_store<1>(c + 256, 64);
  tile_store<2>(c + 512, 64);
  tile_store<3>(c + 768, 64);
}

// `between(step)` runs before each step: a place for prefetches or for another unit's vector work.
template <class Between>
KP_INLINE void block_product(const TileOperand& a, const TileOperand& b, int64_t steps, Between between) {
  for (int64_t s = 0; s < steps; ++s) {
    between(s);
    tile_load<6>(b.first + s * b.step, b.row_stride);
    tile_load<4>(a.first + s * a.step, a.row_stride);
    tile_bf16<0, 4, 6>();
    tile_load<7>(b.second + s * b.step, b.row_stride);
    tile_bf16<1, 4, 7>();
    tile_load<5>(a.second + s * a.step, a.row_stride);
    tile_bf16<2, 5, 6>();
    tile_bf16<3, 5, 7>();
  }
}

KP_INLINE void block_product(const TileOperand& a, const TileOperand& b, int64_t steps) {
  block_product(a, b, steps, [](int64_t) {});
}

}  // namespace
}  // namespace kernelpair::KP_TIER
