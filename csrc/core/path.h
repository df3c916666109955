// Ways that kernels take, and which of them were taken since the last time that somebody asked: a run of the
// harness can then say what of the kernels' code no case has reached. A mark that is set already costs one
// load.
//
//   KP_PATH(store_dense);      // in the kernel's anonymous namespace: a record, which the library finds
//   mark(paths::store_dense);  // where the way goes
//
// The compiler drops a record that its tier never marks, so that the library knows which tier has which ways; those of
// a kernel that tiers share are in its owner's name (core/kernel.h).
#pragma once

#include "core/view.h"

namespace kernelpair {

struct alignas(32) Path {  // records lie side by side in a section of their own: path.cpp walks them
  const char* name;
  const char* tier;
  bool taken;  // threads touch it by atomic built-ins: <atomic> is a fifth of a second in every kernel
  const char* source;  // the kernel's
};

KP_INLINE void mark(Path& path) {
#if defined(__clang__)
  asm("" : : "r"(&path));  // else it keeps only the flag of a record whose other members are not used here
#endif
  if (!__atomic_load_n(&path.taken, __ATOMIC_RELAXED)) __atomic_store_n(&path.taken, true, __ATOMIC_RELAXED);
}

}  // namespace kernelpair

#define KP_QUOTED(text) #text
#define KP_NAME_OF_TIER(tier) KP_QUOTED(tier)
#define KP_PATH(name)                                                                                       \
  namespace paths {                                                                                         \
  [[maybe_unused]]                                                                                          \
  __attribute__((section("kp_paths"))) Path name = {#name, KP_NAME_OF_TIER(KP_TIER), false, __BASE_FILE__}; \
  }                                                                                                         \
  static_assert(true)
