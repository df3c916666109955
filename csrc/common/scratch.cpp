#include "common/scratch.h"

#include <cstdlib>

namespace kernelpair {
namespace {

constexpr int64_t kLine = 64;

struct Scratch {
  void* data = nullptr;
  int64_t capacity = 0;
  ~Scratch() { std::free(data); }
};

thread_local Scratch scratch;

}  // namespace

void* thread_scratch(int64_t bytes) {
  if (bytes > scratch.capacity) {
    std::free(scratch.data);
    scratch.capacity = (bytes + kLine - 1) / kLine * kLine;
    scratch.data = std::aligned_alloc(kLine, scratch.capacity);
    if (!scratch.data) std::abort();  // within a parallel loop nothing may be thrown
  }
  return scratch.data;
}

}  // namespace kernelpair
