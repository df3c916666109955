// Memory for packed weights, which are written once and read whole in every call: in huge pages where the
// system gives them to who asks (/sys/kernel/mm/transparent_hugepage/enabled: madvise or always). What they gain
// stands in docs/10-speed.md.
#pragma once

#include <cstddef>

namespace kernelpair {

// Below it memory comes from torch.
constexpr size_t kHugePage = size_t{2} << 20;

// `bytes`, above 0, of zeros that begin at a huge page; nullptr where there is no memory. Ends with unmap_weight
// of the same size.
void* map_weight(size_t bytes);
void unmap_weight(void* data, size_t bytes);

}  // namespace kernelpair
