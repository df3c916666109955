// pack_fp8_weight and unpack_fp8_weight: the panels of pack_panels.h, of codes of one byte.
#include "kernels/pack_fp8_weight.h"

#include "linear/pack_panels.h"

namespace kernelpair::KP_TIER {

void pack_fp8_weight(const PackFp8WeightArguments& call) {
  const View& weight = call.weight;
  for_each_panel(weight.sizes[0], weight.sizes[1], [&](int64_t p, int64_t offset) {
    pack_panel(weight, at<uint8_t>(call.data, 0) + offset, p * kPanel);
  });
}

void unpack_fp8_weight(const PackFp8WeightArguments& call) {
  const View& weight = call.weight;
  for_each_panel(weight.sizes[0], weight.sizes[1], [&](int64_t p, int64_t offset) {
    unpack_panel(at<const uint8_t>(call.data, 0) + offset, weight, p * kPanel);
  });
}

}  // namespace kernelpair::KP_TIER
