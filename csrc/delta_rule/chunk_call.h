// What the two ways of computing the gated delta rule share: the call, one sequence's part of it, and state
// blocks.
#pragma once

#include "core/integers.h"
#include "core/path.h"
#include "core/scratch.h"
#include "core/view.h"
#include "kernels/chunk_gated_delta_rule.h"
#include "simd/dtypes.h"
#include "simd/transpose.h"
#include "simd/vec_math.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

struct Call : ChunkGatedDeltaRuleArguments {
  int64_t heads_per_key;  // value heads that share a key head
};

// Tokens [begin, end) of one sequence; its states, null where the sequence starts from zeros.
struct Sequence {
  int64_t begin, end;
  int64_t initial_slot;  // -1: zeros
  int64_t final_slot;
};

KP_INLINE float inverse_norm(float square_sum, float eps) { return 1.0f / __builtin_sqrtf(square_sum + eps); }

KP_INLINE float read_beta(const Call& call, int64_t token, int64_t head) {
  return load_one(call.beta.dtype, at(call.beta, token, head));
}

template <class T>
KP_INLINE F32x16 load_some(const T* from, int lanes) {
  return lanes == kLanes ? load(from) : load(from, lanes);
}
template <class T>
KP_INLINE void store_some(T* to, F32x16 a, int lanes) {
  lanes == kLanes ? store(to, a) : store(to, a, lanes);
}

KP_INLINE F32x16 load_state_row(const char* from, Dtype dtype, int lanes) {
  return dtype == Dtype::bf16 ? load_some(reinterpret_cast<const Bf16*>(from), lanes)
                              : load_some(reinterpret_cast<const float*>(from), lanes);
}
KP_INLINE void store_state_row(char* to, Dtype dtype, F32x16 a, int lanes) {
  dtype == Dtype::bf16 ? store_some(reinterpret_cast<Bf16*>(to), a, lanes)
                       : store_some(reinterpret_cast<float*>(to), a, lanes);
}

// Sixteen keys (rows, from k0) by sixteen values (columns, from v0) of a state, zero past its edges.
void load_state_block(const Call& call, int64_t slot, int64_t head, int64_t k0, int64_t v0,
                      F32x16 (&rows)[16]) {
  const View& s = call.initial_state;
  const int64_t outer0 = call.value_major ? v0 : k0, inner0 = call.value_major ? k0 : v0;
  const int outer = lanes_left(s.sizes[2] - outer0), inner = lanes_left(s.sizes[3] - inner0);
  const char* base = at(s, slot, head, outer0) + inner0 * element_size(s.dtype);
  for (int i = 0; i < 16; ++i)
    rows[i] =
        i < outer ? load_state_row(base + i * s.strides[2] * element_size(s.dtype), s.dtype, inner) : zero();
  if (call.value_major) transpose(rows);
}

void store_state_block(const Call& call, int64_t slot, int64_t head, int64_t k0, int64_t v0,
                       F32x16 (&rows)[16]) {
  const View& s = call.final_state;
  const int64_t outer0 = call.value_major ? v0 : k0, inner0 = call.value_major ? k0 : v0;
  const int outer = lanes_left(s.sizes[2] - outer0), inner = lanes_left(s.sizes[3] - inner0);
  char* base = at(s, slot, head, outer0) + inner0 * element_size(s.dtype);
  if (call.value_major) transpose(rows);
  for (int i = 0; i < outer; ++i)
    store_state_row(base + i * s.strides[2] * element_size(s.dtype), s.dtype, rows[i], inner);
}

}  // namespace
}  // namespace kernelpair::KP_TIER
