#include "common/workspace.h"

#include <cstdlib>
#include <new>

namespace kernelpair {
namespace {

struct Buffer {
  char* data = nullptr;
  int64_t capacity = 0;
  ~Buffer() { std::free(data); }
};

constexpr int64_t kAlignment = 64, kPage = 4096;

}  // namespace

char* workspace(Workspace kind, int64_t bytes) {
  thread_local Buffer buffers[2];
  Buffer& buffer = buffers[static_cast<int>(kind)];
  if (bytes > buffer.capacity) {
    std::free(buffer.data);
    buffer.capacity = (bytes + kPage - 1) / kPage * kPage;
    buffer.data = static_cast<char*>(std::aligned_alloc(kAlignment, buffer.capacity));
    if (buffer.data == nullptr) {
      buffer.capacity = 0;
      throw std::bad_alloc();
    }
  }
  return buffer.data;
}

}  // namespace kernelpair
