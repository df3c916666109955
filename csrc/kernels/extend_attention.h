// What the kernel of extend_attention takes. Contract: docs/contracts/extend_attention.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct ExtendAttentionArguments {
  const View& q;                  // [T, H, D]
  const View &k, &v;              // [T, kv heads, D], [T, kv heads, Dv]; absent in cross attention
  const View& out;                // [T, H, Dv]
  const View &k_cache, &v_cache;  // [slots, kv heads, D], [slots, kv heads, Dv]
  const View& req_to_token;       // [requests, columns]
  const View &req_pool_indices, &seq_lens, &extend_seq_lens, &extend_start_loc;  // [B]
  const View& encoder_lens;                                                      // [B], may be absent
  const View& sinks;                                                             // [H], may be absent
  float sm_scale, logit_cap;
  int64_t sliding_window;
  bool is_cross_attn;
};
KP_KERNEL(extend_attention, ExtendAttentionArguments);

}  // namespace kernelpair
