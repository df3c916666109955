// What the kernel of store_cache takes. Contract: docs/contracts/store_cache.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct StoreCacheArguments {
  const View &k, &v;              // [T, H, D], [T, H, Dv]
  const View &k_cache, &v_cache;  // [slots, H, D], [slots, H, Dv]
  const View& indices;            // [T]
  bool has_pad;
  int64_t pad_slot;
};
KP_KERNEL(store_cache, StoreCacheArguments);

}  // namespace kernelpair
