// The software tiles, compiled once: state per thread, a trap where the hardware would fault.
#pragma once

#include <cstdint>

#include "core/view.h"

namespace kernelpair {

// The 64-byte operand of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

namespace soft_tile {
void configure(const TileShapes& shapes);
void release();
void zero(int tile);
void load(int tile, const void* data, int64_t stride);
void store(int tile, void* data, int64_t stride);
void bf16_product(int c, int a, int b);
void int8_product(int c, int a, int b);
}  // namespace soft_tile

}  // namespace kernelpair
