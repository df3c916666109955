// What the kernel of chunk_gated_delta_rule takes. Contract: docs/contracts/chunk_gated_delta_rule.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct ChunkGatedDeltaRuleArguments {
  const View &q, &k;              // [T, HK, K]
  const View &v, &out;            // [T, HV, V]
  const View &g, &beta;           // [T, HV]
  const View& initial_state;      // [slots or sequences, HV, K, V] or [.., V, K]; absent: zeros
  const View& final_state;        // the same shape
  const View& state_indices;      // [N]; absent: sequence n has slot n
  const View& has_initial_state;  // [N] bool; absent: all have one
  const View& cu_seqlens;         // [N + 1]
  bool value_major;               // states are [V, K]
  bool l2norm;
  float eps, scale;
  bool has_pad;
  int64_t pad_slot;
  bool accurate;  // operands of products are not rounded to bf16
};
KP_KERNEL(chunk_gated_delta_rule, ChunkGatedDeltaRuleArguments);

}  // namespace kernelpair
