// int8_linear and int8_matmul: rows of bytes, quantized on the way where they come as floats, times a packed
// weight of bytes. Sums are exact; scales, bias and one rounding follow. Tiles where the tier has them, else
// vectors. Threads share the panels of the weight, as in packed_linear.
#include "kernels/int8_linear.h"

#include "linear/int8_tiles.h"
#include "linear/int8_vectors.h"

namespace kernelpair::KP_TIER {

void int8_linear(const Int8LinearArguments& call) {
  if (call.out.sizes[0] == 0) return;
  ChunkScales scales;
  if (kHasByteTiles)
    TileInt8(call, scales).run();
  else
    VectorInt8{call, scales}.run();
}

}  // namespace kernelpair::KP_TIER
