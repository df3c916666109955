// Tile instructions as bytes: VEX with three bytes, map 0F38, opcodes 49, 4B, 5C and 5E.
#pragma once

#include <ucontext.h>

#include <cstdint>

namespace kernelpair::trap {

enum class Kind : uint8_t {
  none,  // not one of these, or a form of it that is #UD on every CPU
  load_config,
  store_config,
  release,
  zero,
  load,
  store,
  bf16,
  fp16,
  uu8,
  us8,
  su8,
  ss8,
};

struct Instruction {
  Kind kind = Kind::none;
  int length = 0;
  int tile = 0;             // what is written, or stored
  int left = 0, right = 0;  // tile += left * right
  char* address = nullptr;  // of the configuration, or of row 0
  int64_t stride = 0;       // bytes from row to row
};

// The instruction at `code`, its addresses taken from the registers. Reads no byte behind its last one. An FS
// or GS segment or a 32-bit address is `none`: no compiler makes them of tile instructions.
Instruction decode(const uint8_t* code, const greg_t* registers);

}  // namespace kernelpair::trap
