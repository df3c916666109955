// Tile instructions on a CPU without AMX: SIGILL is caught, the instruction carried out on software tiles of
// the thread, and the program goes on behind it.
//
// What is not a tile instruction goes to the handler that was there before. An operand that faults raises
// SIGSEGV at the tile instruction, as on hardware, with no byte changed; so does an illegal configuration
// (#GP). An illegal shape or register is SIGILL (#UD), as it was.
#pragma once

#include <cstdint>

#define KP_EXPORTED __attribute__((visibility("default")))

extern "C" {

// What was carried out since the last reset, in all threads together. `traps` counts the signals: of tile
// instructions in a row only the first is one.
struct kernelpair_trap_totals {
  uint64_t loads, products, stores, zeros, configurations, releases, traps;
};

// 0, or the errno of what failed. Again after somebody else has taken the signal: it is taken back. For one
// thread at a time.
KP_EXPORTED int kernelpair_trap_install();
KP_EXPORTED void kernelpair_trap_counts(kernelpair_trap_totals* totals);
KP_EXPORTED void kernelpair_trap_reset();
}
