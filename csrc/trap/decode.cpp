#include "trap/decode.h"

#include <cstring>

namespace kernelpair::trap {
namespace {

// The places in a ucontext of the registers as instructions number them.
constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
constexpr int kNoIndex = 4, kNoBase = 5, kSib = 4;

// Prefixes that mean nothing in 64-bit mode: segments ES, CS, SS and DS.
bool ignored(uint8_t byte) { return byte == 0x26 || byte == 0x2e || byte == 0x36 || byte == 0x3e; }

struct Vex {
  int r, x, b, vvvv, pp;  // as they are meant: stored inverted
};

struct ModRm {
  int mod, reg, rm;
};

int32_t displacement(const uint8_t* at, int size) {
  if (size == 1) return static_cast<int8_t>(*at);
  int32_t value = 0;
  if (size == 4) std::memcpy(&value, at, 4);
  return value;
}

// Fills address and stride from the operand behind ModRM; returns the byte after it.
const uint8_t* decode_memory(const uint8_t* at, const Vex& vex, ModRm form, const greg_t* registers,
                             Instruction& found) {
  const auto value = [&](int number) { return static_cast<uint64_t>(registers[kPlaces[number]]); };
  int base = form.rm, size = form.mod == 1 ? 1 : form.mod == 2 ? 4 : 0;
  if (form.rm == kSib) {
    const uint8_t sib = *at++;
    base = sib & 7;
    const int index = (sib >> 3 & 7) + 8 * vex.x;
    if (index != kNoIndex) found.stride = static_cast<int64_t>(value(index) << (sib >> 6));
  }
  uint64_t address = 0;
  const bool alone = form.mod == 0 && base == kNoBase;  // no base: RIP without SIB, nothing with it
  if (alone)
    size = 4;
  else
    address = value(base + 8 * vex.b);
  address += static_cast<int64_t>(displacement(at, size));
  at += size;
  if (alone && form.rm != kSib) address += reinterpret_cast<uint64_t>(at);
  found.address = reinterpret_cast<char*>(address);
  return at;
}

constexpr int kPlain = 0, k66 = 1, kF3 = 2, kF2 = 3;

Kind config_kind(const Vex& vex, ModRm form) {
  if (vex.vvvv) return Kind::none;
  const bool memory = form.mod != 3;
  if (memory && form.reg == 0 && vex.pp == kPlain) return Kind::load_config;
  if (memory && form.reg == 0 && vex.pp == k66) return Kind::store_config;
  if (!memory && form.reg == 0 && form.rm == 0 && vex.pp == kPlain) return Kind::release;
  if (!memory && form.rm == 0 && vex.pp == kF2) return Kind::zero;
  return Kind::none;
}

Kind memory_kind(const Vex& vex, ModRm form) {
  if (vex.vvvv || form.mod == 3 || form.rm != kSib || vex.pp == kPlain) return Kind::none;
  return vex.pp == kF3 ? Kind::store : Kind::load;
}

Kind product_kind(uint8_t opcode, const Vex& vex, ModRm form) {
  if (form.mod != 3 || vex.b || vex.vvvv > 7) return Kind::none;
  if (opcode == 0x5c) return vex.pp == kF3 ? Kind::bf16 : vex.pp == kF2 ? Kind::fp16 : Kind::none;
  constexpr Kind kinds[4] = {Kind::uu8, Kind::us8, Kind::su8, Kind::ss8};
  return kinds[vex.pp];
}

Kind kind_of(uint8_t opcode, const Vex& vex, ModRm form) {
  switch (opcode) {
    case 0x49: return config_kind(vex, form);
    case 0x4b: return memory_kind(vex, form);
    case 0x5c:
    case 0x5e: return product_kind(opcode, vex, form);
    default: return Kind::none;
  }
}

}  // namespace

Instruction decode(const uint8_t* code, const greg_t* registers) {
  Instruction found;
  const uint8_t* at = code;
  while (ignored(*at) && at - code < 4) ++at;
  if (at[0] != 0xc4 || (at[1] & 31) != 2) return found;
  const Vex vex = {~at[1] >> 7 & 1, ~at[1] >> 6 & 1, ~at[1] >> 5 & 1, ~at[2] >> 3 & 15, at[2] & 3};
  const bool wide = at[2] & 0x84;  // W or L
  const uint8_t opcode = at[3];
  if (wide || vex.r || (opcode != 0x49 && opcode != 0x4b && opcode != 0x5c && opcode != 0x5e)) return found;
  const ModRm form = {at[4] >> 6, at[4] >> 3 & 7, at[4] & 7};
  found.kind = kind_of(opcode, vex, form);
  if (found.kind == Kind::none) return found;
  found.tile = form.reg;
  found.left = form.rm;
  found.right = vex.vvvv;
  at += 5;
  if (form.mod != 3) at = decode_memory(at, vex, form, registers, found);
  if (opcode == 0x49) found.address += found.stride;  // no rows: the index is a part of the address
  found.length = static_cast<int>(at - code);
  return found;
}

}  // namespace kernelpair::trap
