// fp8_linear: x [..., K] times a packed weight of float8 codes with a scale for each of its blocks, plus bias,
// with fp32 sums and one rounding. The products are those of packed_linear: bf16 takes tiles where the tier has
// them, everything else vectors. A slice of a panel is decoded before it is multiplied, once for a group of rows.
#include "kernels/fp8_linear.h"

#include "linear/coded_tiles.h"
#include "linear/fp8_codes.h"

namespace kernelpair::KP_TIER {

void fp8_linear(const Fp8LinearArguments& call) { multiply_coded<Fp8Codes>(call); }

void fp8_linear_panels(const Fp8LinearPanelsArguments& call) {
  const Fp8LinearArguments& layer = call.layer;
  using Tiles = CodedTiles<Fp8Codes>;
  if (kHasTiles && call.run.tiles) {
    auto* room = static_cast<char*>(thread_scratch(Tiles::decoded_bytes() + Tiles::run_bytes()));
    return Tiles(layer, room).multiply_run(call.run, room + Tiles::decoded_bytes());
  }
  VectorProduct<CodedPanels<Fp8Codes>>(layer.data, layer.bias, layer.out, {layer}).multiply_run(call.run);
}

}  // namespace kernelpair::KP_TIER
