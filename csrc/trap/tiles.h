// The tiles of one thread, and what each instruction does to them.
#pragma once

#include "tiles/soft_product.h"
#include "trap/decode.h"

namespace kernelpair::trap {

// The 64-byte operand of LDTILECFG; all zero where nothing is configured.
struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct Tiles {
  soft_tile::Tile tile[soft_tile::kTiles];
  soft_tile::Tile incoming;  // a load that has not reached its last row
  Config config;
};

enum class Outcome { done, undefined, protection };  // #UD, #GP

// Carries out one instruction. Its operand in memory may fault, as often as it likes: nothing is changed
// before every byte of it was reached.
Outcome carry_out(const Instruction& instruction, Tiles& tiles);

}  // namespace kernelpair::trap
