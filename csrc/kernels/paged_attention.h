// What the kernel of paged_attention takes. Contract: docs/contracts/paged_attention.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct PagedAttentionArguments {
  const View& q;                      // [T, H, D]
  const View &k_cache, &v_cache;      // [pages, page, kv heads, D], [pages, page, kv heads, Dv]
  const View& page_table;             // [B, columns]
  const View& cache_seqlens;          // [B]
  const View& cu_seqlens_q;           // [B + 1]
  const View& qv;                     // [T, H, Dv], may be absent, as the next three
  const View &k_descale, &v_descale;  // [B, kv heads] f32
  const View& sinks;                  // [H]
  const float* alibi_slopes;          // [H] or null
  const View& out;                    // [T, H, Dv]
  float softmax_scale, softcap;
  int64_t window_left, window_right;  // -1: no bound
  int64_t num_splits;                 // 0: the kernel chooses
};
KP_KERNEL(paged_attention, PagedAttentionArguments);

}  // namespace kernelpair
