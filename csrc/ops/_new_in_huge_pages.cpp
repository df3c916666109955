// _new_in_huge_pages: memory for packed weights and caches that Python makes (optimized/huge_pages.py).
#include "core/operator.h"

namespace kernelpair {
namespace {

Tensor _new_in_huge_pages(const Tensor& like, std::vector<int64_t> sizes) {
  for (const int64_t size : sizes) KP_CHECK_VALUE(size >= 0, "sizes must not be negative, got ", size);
  return new_weight(sizes.data(), sizes.size(), view_of("like", like).dtype);
}

}  // namespace

KP_OPERATOR(_new_in_huge_pages, "(Tensor like, int[] sizes) -> Tensor", "like.new_empty(sizes)");

}  // namespace kernelpair
