// What the kernel of quantize_rows_int8 takes. Contract: docs/contracts/quantize_rows_int8.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct QuantizeRowsInt8Arguments {
  const View& x;      // [M, K], dense in K
  const View& q;      // [M, K] i8, contiguous
  const View& scale;  // [M] f32
  const View& azp;    // [M] i32, or absent: then the rows are symmetric
};
KP_KERNEL(quantize_rows_int8, QuantizeRowsInt8Arguments);

}  // namespace kernelpair
