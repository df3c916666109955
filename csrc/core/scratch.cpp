#include "core/scratch.h"

#include <cstdlib>
#include <cstring>

namespace kernelpair {
namespace {

constexpr int64_t kLine = 64;

// On trial, scratch is NaN in every dtype whenever it is handed out: what a kernel did not write, it may not
// use.
const bool poisoned = std::getenv("KERNELPAIR_POISON_SCRATCH") != nullptr;
constexpr int kNan = 0xff;

struct Scratch {
  void* data = nullptr;
  int64_t capacity = 0;
  ~Scratch() { std::free(data); }

  void* of_size(int64_t bytes) {
    if (bytes > capacity) {
      std::free(data);
      capacity = round_up(bytes, kLine);
      data = std::aligned_alloc(kLine, capacity);
      if (!data) std::abort();  // within a parallel loop nothing may be thrown
    }
    if (poisoned) std::memset(data, kNan, bytes);
    return data;
  }
};

thread_local Scratch of_thread, of_call;

}  // namespace

void* thread_scratch(int64_t bytes) { return of_thread.of_size(bytes); }

void* call_scratch(int64_t bytes) { return of_call.of_size(bytes); }

}  // namespace kernelpair
