// packed_linear: x [..., K] times a packed weight, plus bias, with fp32 sums and one rounding. bf16 takes
// tiles where the tier has them; everything else, and every other tier, takes vectors (fp16 tiles exist on no
// CPU of today). Threads share the panels of the weight; x is first brought into the order that its products
// read, once for all threads.
#include "kernels/packed_linear.h"

#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"

namespace kernelpair::KP_TIER {

void packed_linear(const PackedLinearArguments& call) {
  if (call.out.sizes[0] == 0) return;
  if (kHasTiles && call.x.dtype == Dtype::bf16) return TileLinear(call).run();
  with_vector_float(call.x.dtype, [&](auto element) { VectorLinear<decltype(element)>(call).run(); });
}

}  // namespace kernelpair::KP_TIER
