// pack_linear_weight and unpack_linear_weight: the panels of pack_panels.h, of elements of 16 or 32 bits.
#include "kernels/pack_linear_weight.h"

#include "linear/pack_panels.h"

namespace kernelpair::KP_TIER {

void pack_linear_weight(const PackLinearWeightArguments& call) {
  const View &weight = call.weight, &packed = call.packed;
  for_each_panel(weight.sizes[0], weight.sizes[1], [&](int64_t p, int64_t offset) {
    if (element_size(weight.dtype) == 2)
      pack_panel(weight, static_cast<uint16_t*>(packed.data) + offset, p * kPanel);
    else
      pack_panel(weight, static_cast<uint32_t*>(packed.data) + offset, p * kPanel);
  });
}

void unpack_linear_weight(const PackLinearWeightArguments& call) {
  const View &weight = call.weight, &packed = call.packed;
  for_each_panel(weight.sizes[0], weight.sizes[1], [&](int64_t p, int64_t offset) {
    if (element_size(weight.dtype) == 2)
      unpack_panel(static_cast<const uint16_t*>(packed.data) + offset, weight, p * kPanel);
    else
      unpack_panel(static_cast<const uint32_t*>(packed.data) + offset, weight, p * kPanel);
  });
}

}  // namespace kernelpair::KP_TIER
