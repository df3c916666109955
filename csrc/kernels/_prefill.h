// The engine of extend_attention, flash_attn_varlen and paged_attention: many query rows over keys, wherever they
// lie. Its kernel knows where, and says so in a KeySource; the engine is compiled once a tier.
#pragma once

#include "core/integers.h"
#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

// Row i sees the keys i + left <= j < i + right, as far as they lie in [0, keys).
struct Sequence {
  int64_t first_row;  // of q and out
  int64_t rows;
  int64_t keys;
  int64_t left;
  int64_t right;
  KP_INLINE int64_t low(int64_t i) const { return clamp(i + left, 0, keys); }
  KP_INLINE int64_t high(int64_t i) const { return clamp(i + right, 0, keys); }
};

// What a call's kernel is asked about request b, `self` first.
struct KeySource {
  const void* self;
  Dtype dtype;  // of keys and values
  // The request's rows, its number of keys and what each row sees of them.
  Sequence (*sequence)(const void* self, int64_t b);
  // The addresses of the keys and values first..first + count - 1 of a kv head.
  void (*locate)(const void* self, int64_t b, int64_t head, int64_t first, int64_t count, const char** keys,
                 const char** values);
};

struct PrefillArguments {
  const View &q, &out, &sinks;  // sinks may be absent
  const View& qv = kAbsent;
  const View &k_descale = kAbsent,
             &v_descale = kAbsent;  // [requests, kv heads]: factors of scores and values
  int64_t requests, kv_heads;
  int64_t width, value_width;  // D, Dv
  float scale, cap;
  const float* slopes = nullptr;  // [H] or null: a key's distance from the row times this comes to its score
  const KeySource& keys;
  KP_INLINE int64_t group() const { return q.sizes[1] / kv_heads; }
};
KP_KERNEL(_prefill, PrefillArguments);

}  // namespace kernelpair
