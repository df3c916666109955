// Scratch memory of a thread: it grows to the largest size that a kernel asked for, and is kept between
// calls, so that no call pays for fresh pages. Its content is arbitrary. One user at a time in a thread.
#pragma once

#include <cstdint>

#include "core/integers.h"

namespace kernelpair {

void* thread_scratch(int64_t bytes);  // aligned to 64 bytes

// The same for what a call's loop bodies share: the calling thread asks for it and hands them the pointer,
// while each of them, the one in the calling thread too, may have a thread_scratch of its own.
void* call_scratch(int64_t bytes);

}  // namespace kernelpair

#ifdef KP_TIER
namespace kernelpair::KP_TIER {
namespace {

// Hands out pieces of one allocation, each on cache lines of its own; with no base it only adds up.
struct BumpAllocator {
  char* base;
  int64_t used = 0;
  template <class T>
  KP_INLINE T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base + used);
    used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
#endif
