// What the kernel of flash_attn_varlen takes. Contract: docs/contracts/flash_attn_varlen.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct FlashAttnVarlenArguments {
  const View& q;                            // [Tq, H, D]
  const View &k, &v;                        // [Tk, kv heads, D], [Tk, kv heads, Dv]
  const View &cu_seqlens_q, &cu_seqlens_k;  // [B + 1]
  const View& sinks;                        // [H], may be absent
  const View& causal_requests;              // [B] bool, may be absent: all are as `causal` says
  const View& out;                          // [Tq, H, Dv]
  float softmax_scale, softcap;
  bool causal;
  bool bottom_right;                  // the last row stands at the last key; else the first at the first
  int64_t window_left, window_right;  // -1: no bound
};
KP_KERNEL(flash_attn_varlen, FlashAttnVarlenArguments);

}  // namespace kernelpair
