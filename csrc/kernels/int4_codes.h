// What the kernels of int4_codes take. Contract: docs/contracts/int4_codes.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct Int4CodesArguments {
  const View& qweight;  // i32: eight codes in each, along K (gptq) or along N (awq)
  const View& qzeros;   // [groups, N / 8] i32
  int64_t zero_offset;  // added to stored zero points
  const View& codes;    // [N, K] u8, contiguous
  const View& zeros;    // [N, groups] u8, contiguous
};
KP_KERNEL(int4_from_gptq, Int4CodesArguments);
KP_KERNEL(int4_from_awq, Int4CodesArguments);

}  // namespace kernelpair
