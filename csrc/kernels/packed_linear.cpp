// packed_linear: x [..., K] times a packed weight, plus bias, with fp32 sums and one rounding. bf16 takes tiles where the
// tier has them; everything else, and every other tier, takes vectors (fp16 tiles exist on no CPU of today). Threads share
// the panels of the weight; x is first brought into the order that its products read, once for all threads.
#include "common/dtypes.h"
#include "kernels/linear_tiles.h"
#include "kernels/linear_vectors.h"

namespace kernelpair::KP_TIER {

void packed_linear(const View& x, const View& packed_weight, const View& bias, const View& out) {
  if (out.sizes[0] == 0) return;
  if (kHasTiles && x.dtype == Dtype::bf16) return TileLinear{{x}, packed_weight, bias, out}.run();
  with_float(x.dtype, [&](auto element) {
    VectorLinear<decltype(element)>{{x}, packed_weight, bias, out}.run();
  });
}

}  // namespace kernelpair::KP_TIER
