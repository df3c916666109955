// fp8_linear: x [..., K] times a packed weight of float8 codes with a scale for each of its blocks, plus bias,
// with fp32 sums and one rounding. The products are those of packed_linear: bf16 takes tiles where the tier has
// them, everything else vectors. A slice of a panel is decoded before it is multiplied, once for up to 128 rows
// on tiles and 96 on vectors.
#include "kernels/fp8_linear.h"

#include "linear/fp8_products.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(fp8_tiles_few);
KP_PATH(fp8_tiles_whole);
KP_PATH(fp8_tiles_slices);
KP_PATH(fp8_vectors_few);
KP_PATH(fp8_vectors_many);
KP_PATH(fp8_vectors_slices);

struct TileFp8 : Fp8Tiles<TileFp8, Bf16Tiles> {
  explicit TileFp8(const Fp8LinearArguments& arguments)
      : Fp8Tiles(arguments, nullptr, arguments.x, arguments.data, arguments.bias, arguments.out) {}

  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::fp8_tiles_few : sliced ? paths::fp8_tiles_slices : paths::fp8_tiles_whole);
  }
};

struct LinearPanels : Fp8Panels {
  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::fp8_vectors_few : sliced ? paths::fp8_vectors_slices : paths::fp8_vectors_many);
  }
};

}  // namespace

void fp8_linear(const Fp8LinearArguments& call) {
  if (call.out.sizes[0] == 0) return;
  if (kHasTiles && call.x.dtype == Dtype::bf16) return TileFp8(call).run();
  with_float(call.x.dtype, [&](auto element) {
    VectorLinear<decltype(element), LinearPanels>(call.x, call.data, call.bias, call.out, {{call}}).run();
  });
}

}  // namespace kernelpair::KP_TIER
