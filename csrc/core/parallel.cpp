#include "core/parallel.h"

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace kernelpair {
namespace {

// On trial a loop that is too short for several threads is cut into single steps, and the ranges of all loops
// begin together: what ranges do to each other then shows in small batches too, which otherwise one thread
// would have done before the next one wakes.
const bool on_trial = std::getenv("KERNELPAIR_SPLIT_LOOPS") != nullptr;
constexpr int kPatience = 200;  // looks at the others, each of which lets another thread of this core go on

struct Together {
  LoopBody body;
  void* context;
  int64_t expected;
  std::atomic<int64_t> arrived{0};
};

void begin_together(int64_t begin, int64_t end, void* context) {
  auto* loop = static_cast<Together*>(context);
  loop->arrived.fetch_add(1);
  for (int look = 0; look < kPatience && loop->arrived.load(std::memory_order_relaxed) < loop->expected;
       ++look)
    std::this_thread::yield();
  loop->body(begin, end, loop->context);
}

}  // namespace

bool loops_are_split() { return on_trial; }

int thread_count() { return static_cast<int>(torch::stable::get_num_threads()); }

void run_parallel(int64_t n, int64_t grain, LoopBody body, void* context) {
  if (n <= 0) return;
  const bool together = on_trial && n > 1 && thread_count() > 1;
  if (n <= grain && !together) return body(0, n, context);
  const int64_t threads = thread_count();
  const int64_t least_range = n <= grain || grain < 1 ? 1 : grain;
  const int64_t range = divide_up(n, least(threads, divide_up(n, least_range)));  // torch's
  Together loop{body, context, divide_up(n, range)};
  if (together) body = begin_together, context = &loop;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, n, least_range, body, context));
}

}  // namespace kernelpair
