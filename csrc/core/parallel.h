// Loops over torch's thread pool, for kernels: parallel_for(n, grain, [&](int64_t begin, int64_t end) {...}).
// Each thread gets one contiguous range. The body must not throw; tiles are configured inside it (tile.h).
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "core/view.h"

namespace kernelpair {

using LoopBody = void (*)(int64_t begin, int64_t end, void* context);

// Runs body over [0, n) in ranges of at least `grain`, on as many threads as torch.set_num_threads allows.
void run_parallel(int64_t n, int64_t grain, LoopBody body, void* context);

int thread_count();

// True where a kernel is on trial (KERNELPAIR_SPLIT_LOOPS is set): loops take several threads however little
// there is to do.
bool loops_are_split();

}  // namespace kernelpair

#ifdef KP_TIER
namespace kernelpair::KP_TIER {
namespace {

template <class Body>
KP_INLINE void parallel_for(int64_t n, int64_t grain, const Body& body) {
  run_parallel(n, grain, [](int64_t begin, int64_t end, void* context) {
    (*static_cast<const Body*>(context))(begin, end);
  }, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
#endif
