// fp8_linear: x [..., K] times a packed weight of float8 codes with a scale for each of its blocks, plus bias,
// with fp32 sums and one rounding. The products are those of packed_linear: bf16 takes tiles where the tier has
// them, everything else vectors. A slice of a panel is decoded before it is multiplied, once for a group of rows.
#include "kernels/fp8_linear.h"

#include "linear/coded_tiles.h"
#include "linear/fp8_codes.h"

namespace kernelpair::KP_TIER {

void fp8_linear(const Fp8LinearArguments& call) { multiply_coded<Fp8Codes>(call); }

}  // namespace kernelpair::KP_TIER
