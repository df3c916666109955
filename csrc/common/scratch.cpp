#include "common/scratch.h"

#include <cstdlib>
#include <cstring>

namespace kernelpair {
namespace {

constexpr int64_t kLine = 64;

struct Scratch {
  void* data = nullptr;
  int64_t capacity = 0;
  ~Scratch() { std::free(data); }
};

thread_local Scratch scratch;

// On trial, scratch is NaN in every dtype whenever it is handed out: what a kernel did not write, it may not use.
const bool poisoned = std::getenv("KERNELPAIR_POISON_SCRATCH") != nullptr;
constexpr int kNan = 0xff;

}  // namespace

void* thread_scratch(int64_t bytes) {
  if (bytes > scratch.capacity) {
    std::free(scratch.data);
    scratch.capacity = (bytes + kLine - 1) / kLine * kLine;
    scratch.data = std::aligned_alloc(kLine, scratch.capacity);
    if (!scratch.data) std::abort();  // within a parallel loop nothing may be thrown
  }
  if (poisoned) std::memset(scratch.data, kNan, bytes);
  return scratch.data;
}

}  // namespace kernelpair
