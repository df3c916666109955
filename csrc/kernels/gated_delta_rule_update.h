// What the kernel of gated_delta_rule_update takes. Contract: docs/contracts/gated_delta_rule_update.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct GatedDeltaRuleUpdateArguments {
  const View &A_log, &dt_bias;                        // [HV]
  const View &q, &k;                                  // [B, HK, K]
  const View &v, &o;                                  // [B, HV, V]
  const View &a, &b;                                  // [B, HV]
  const View& state;                                  // [slots, HV, K, V], or [.., V, K] in "vk"
  const View& state_indices;                          // [B], or [B, Sn] with drafts
  const View &num_accepted_tokens, &query_start_loc;  // [B], [B + 1], given where the tokens are drafts
  bool vk;
  bool l2norm;
  float eps, scale;
  float softplus_beta, softplus_threshold;
  bool has_pad;
  int64_t pad_slot;
};
KP_KERNEL(gated_delta_rule_update, GatedDeltaRuleUpdateArguments);

}  // namespace kernelpair
