// What the kernel of decode_attention takes. Contract: docs/contracts/decode_attention.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct DecodeAttentionArguments {
  const View& q;                                           // [B, H, D]
  const View &k_cache, &v_cache;                           // [slots, kv heads, D], [slots, kv heads, Dv]
  const View& out;                                         // [B, H, Dv]
  const View &key, &value, &loc;                           // new rows and their slots, may be absent
  const View& attn_logits;                                 // [B, H, splits, Dv + 1]
  const View& req_to_token;                                // [requests, columns]
  const View &req_pool_indices, &seq_lens, &encoder_lens;  // [B]; encoder_lens may be absent
  const View& sinks;                                       // [H], may be absent
  float sm_scale, logit_cap;
  int64_t sliding_window;
  bool is_cross_attn;
  bool has_pad;  // requests whose loc is pad_slot store nothing, and their rows of out are 0
  int64_t pad_slot;
  bool shared;  // v_cache is the first part of k_cache
};
KP_KERNEL(decode_attention, DecodeAttentionArguments);

}  // namespace kernelpair
