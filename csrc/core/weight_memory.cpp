#include "core/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace kernelpair {
namespace {

size_t whole_pages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

// A mapping of its own, not malloc: memory that was in use before has its small pages already.
void* map_weight(size_t bytes) {
  const size_t needed = whole_pages(bytes);
  void* const mapped =
      mmap(nullptr, needed + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<char*>(mapped);
  const size_t past = reinterpret_cast<size_t>(begin) % kHugePage, before = past ? kHugePage - past : 0;
  char* const data = begin + before;
  if (before) munmap(begin, before);
  munmap(data + needed, kHugePage - before);
#ifdef MADV_HUGEPAGE
  madvise(data, needed, MADV_HUGEPAGE);  // refused by a system without them: then small ones it is
#endif
  return data;
}

void unmap_weight(void* data, size_t bytes) { munmap(data, whole_pages(bytes)); }

}  // namespace kernelpair
