// A weight [N, K] to and from panels of 32 outputs, each a forward stream of blocks of 32 k; a block is two
// tiles of 16 outputs, with k in groups of r (one for fp32, two for narrower elements). Bits move, nothing is
// converted; a thread owns whole panels.
#pragma once

#include "core/integers.h"
#include "core/parallel.h"
#include "core/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kPanel = 32;               // outputs of a panel, and k of a block
constexpr int64_t kGrainElements = 1 << 17;  // 60 us at 2 elements a ns: what waking a thread costs

// Where element (n, k) of a panel lies in its stream, r elements of k side by side.
KP_INLINE int64_t packed_offset(int64_t n, int64_t k, int64_t r) {
  const int64_t block = k / kPanel * kPanel * kPanel, tile = n / 16 * 16 * kPanel;
  return block + tile + k % kPanel / r * 16 * r + n % 16 * r + k % r;
}

template <class Element>
void pack_panel(const View& weight, Element* panel, int64_t first_n) {
  const int64_t N = weight.sizes[0], K = weight.sizes[1], r = sizeof(Element) == 4 ? 1 : 2;
  const auto* from = static_cast<const Element*>(weight.data);
  for (int64_t n = 0; n < kPanel; ++n) {
    const Element* row = from + (first_n + n) * weight.strides[0];
    const int64_t inside = first_n + n < N ? K : 0;
    for (int64_t k = 0; k < inside; ++k) panel[packed_offset(n, k, r)] = row[k * weight.strides[1]];
    for (int64_t k = inside; k < round_up(K, kPanel); ++k) panel[packed_offset(n, k, r)] = 0;
  }
}

template <class Element>
void unpack_panel(const Element* panel, const View& weight, int64_t first_n) {
  const int64_t N = weight.sizes[0], K = weight.sizes[1], r = sizeof(Element) == 4 ? 1 : 2;
  for (int64_t n = 0; n < kPanel && first_n + n < N; ++n) {
    Element* row = static_cast<Element*>(weight.data) + (first_n + n) * K;
    for (int64_t k = 0; k < K; ++k) row[k] = panel[packed_offset(n, k, r)];
  }
}

// Calls body(panel number, element offset of its stream) for every panel of an [N, K] weight.
template <class Body>
void for_each_panel(int64_t N, int64_t K, const Body& body) {
  const int64_t panel_elements = round_up(K, kPanel) * kPanel;
  parallel_for(divide_up(N, kPanel), kGrainElements / panel_elements + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) body(p, p * panel_elements);
  });
}

}  // namespace
}  // namespace kernelpair::KP_TIER
