// int4_linear: x [..., K] times a packed weight of codes of four bits with a scale and a zero point for each
// group of columns, plus bias. x keeps its dtype and takes the products of packed_linear, for which slices of a
// panel are decoded; or it is quantized to int8, and the sums of each group are exact.
#include "kernels/int4_linear.h"

#include "linear/coded_tiles.h"
#include "linear/int4_bytes.h"
#include "linear/int4_codes.h"
#include "linear/int4_slices.h"

namespace kernelpair::KP_TIER {

void int4_linear(const Int4LinearArguments& call) {
  if (!call.bytes) return multiply_coded<Int4Codes>(call);
  const int64_t rows = call.out.sizes[0];
  if (rows > kCodeRows) return Int4Many{{call}}.run();
  if (rows > 0) Int4Few{{call}}.run(rows);
}

}  // namespace kernelpair::KP_TIER
