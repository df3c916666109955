// packed_linear: x [..., K] times a packed weight, plus bias, with fp32 sums and one rounding. bf16 takes
// tiles where the tier has them; everything else, and every other tier, takes vectors (fp16 tiles exist on no
// CPU of today). Threads share the panels of the weight; x is first brought into the order that its products
// read, once for all threads.
#include "kernels/packed_linear.h"

#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"

namespace kernelpair::KP_TIER {
namespace {

// The panels of an expert come from memory, and end soon: AVX2 reads them 1.04 to 1.06 times as fast with less ahead,
// where weights in L3 lost 9%.
constexpr Distance kExpertDistance = kVectorBytes == 32 ? Distance{3 << 10, 3 << 9} : kStreamDistance;

}  // namespace

void packed_linear(const PackedLinearArguments& call) {
  if (call.out.sizes[0] == 0) return;
  if (kHasTiles && call.x.dtype == Dtype::bf16) return TileLinear(call).run();
  with_vector_float(call.x.dtype, [&](auto element) {
    VectorLinear<PackedPanels<decltype(element)>>(call.x, call.packed_weight, call.bias, call.out).run();
  });
}

void packed_linear_panels(const PackedLinearPanelsArguments& call) {
  const auto& [x, weight, bias, out] = call.layer;
  if (kHasTiles && call.run.tiles)
    return TileLinear(call.layer).multiply_run(call.run, thread_scratch(TileLinear::run_bytes()));
  with_vector_float(weight.dtype, [&](auto element) {
    const PackedPanels<decltype(element)> panels{kExpertDistance};
    VectorProduct<PackedPanels<decltype(element)>>(weight, bias, out, panels).multiply_run(call.run);
  });
}

}  // namespace kernelpair::KP_TIER
