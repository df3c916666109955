// How a decode call is cut into items (kernels/_decode_item.h), and how the splits of a request are merged.
#pragma once

#include "core/parallel.h"
#include "core/path.h"
#include "core/scratch.h"
#include "kernels/_decode_item.h"
#include "simd/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// 60 us of reading, about the price of waking a thread that sleeps.
constexpr int64_t kSerialBytes = 1 << 20;
constexpr int64_t kLeastSplit = 64;  // keys: shorter splits cost more in the merge than they bring
// Keys of a thread's split of the only request: with fewer, threads take kv heads where these come out even. A merge reads
// what another core has just written: at 128 keys a split that was a fifth of the time, at 512 nothing.
constexpr int64_t kFewKeys = 384;

KP_PATH(decode_one_split);
KP_PATH(decode_splits);
KP_PATH(decode_merged);
KP_PATH(decode_head_parts);
KP_PATH(decode_no_keys);

// What the engine asks an item of. A Source has elements of its type Element; it may have codes to widen.
template <class Source>
KP_INLINE DecodeSource decode_source(const Source& source) {
  DecodeSource asked{.self = &source, .queries = [](const void* self, void* to, int64_t width) {
    static_cast<const Source*>(self)->queries(static_cast<typename Source::Element*>(to), width);
  }, .rows = [](const void* self, int64_t first, KeyBlock& block) {
    static_cast<const Source*>(self)->rows(first, block);
  }, .result = [](const void* self, int64_t h, int64_t g, const float* sums, float top, float sum) {
    static_cast<const Source*>(self)->result(h, g, sums, top, sum);
  }};
  if constexpr (requires(KeyBlock& block) { source.widen(block, nullptr); })
    asked.widen = [](const void* self, KeyBlock& block, char* room) {
      static_cast<const Source*>(self)->widen(block, room);
    };
  return asked;
}

// How a call is cut: each request into at most `splits` runs of keys of at least `target` keys, a multiple of
// `granule`; and into runs of kv heads where that leaves threads idle.
struct SplitPlan {
  int64_t splits;
  int64_t target;
  int64_t granule;
  int64_t head_parts;

  int64_t split_keys(int64_t keys) const {
    const int64_t parts = least(splits, most(1, divide_up(keys, target)));
    return round_up(divide_up(keys, parts), granule);
  }
  int64_t splits_of(int64_t keys) const {
    const int64_t length = split_keys(keys);
    return keys ? divide_up(keys, length) : 0;
  }
};

// The keys of the requests of a call.
struct KeyCounts {
  int64_t total = 0, longest = 0;
  int64_t busy = 0;  // requests with keys: padding a batch changes no bit of its results

  KP_INLINE void add(int64_t keys) {
    total += keys;
    longest = most(longest, keys);
    busy += keys > 0;
  }
};

// A single request is cut into as many splits as there are threads, a short one by its heads; several ones so that the
// last item to end is a short one.
KP_INLINE SplitPlan plan_splits(int64_t most_splits, const KeyCounts& keys, int64_t heads) {
  const int64_t threads = thread_count(), parts = keys.busy <= 1 ? threads : 2 * threads;
  SplitPlan plan;
  plan.target = most(kLeastSplit, divide_up(keys.total, parts));
  plan.granule = kTileKeys;
  plan.splits = least(most_splits, most(1, divide_up(keys.longest, plan.target)));
  if (keys.busy <= 1 && heads % threads == 0 && keys.longest < threads * kFewKeys) plan.splits = 1;
  const int64_t items = most(keys.busy, 1) * plan.splits;
  plan.head_parts = items >= threads ? 1 : least(heads, divide_up(threads, items));
  mark(plan.splits > 1 ? paths::decode_splits : paths::decode_one_split);
  if (plan.head_parts > 1) mark(paths::decode_head_parts);
  return plan;
}

// The caller's number of splits, however short they are.
KP_INLINE SplitPlan literal_splits(int64_t splits) { return {splits, 1, 1, 1}; }

// Calls body(item) for every item, threads taking the next one as they get free. A thread begins with the
// same one in every call: what it reads may still be in the cache of that core.
template <class Body>
void for_each_item(int64_t items, int64_t bytes, const Body& body) {
  const int64_t workers = bytes < kSerialBytes && !loops_are_split() ? 1 : least(items, thread_count());
  int64_t next = workers;
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
    for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < items;) body(i);
  });
}

// Partial results of one query head in float32: a normalised row of Dv, and its log-sum-exp. Of any
// alignment.
struct Partial {
  float* row;
  float* lse;
  float load_lse() const {
    float value;
    __builtin_memcpy(&value, lse, sizeof value);
    return value;
  }
};

// A split without weight gives a row of 0 and -inf. Sums are divided first: they and the factor may be large.
KP_NOINLINE void write_partial(Partial to, int64_t Dv, const float* sums, float top, float sum,
                               float factor = 1) {
  for (int64_t d = 0; d < Dv; d += kLanes) {
    const int live = lanes_left(Dv - d);
    store(to.row + d, load(sums + d) / splat(sum == 0 ? 1 : sum) * splat(factor), live);
  }
  const float lse = top + __builtin_logf(sum);
  __builtin_memcpy(to.lse, &lse, sizeof lse);
}

// Writes sums * factor / (sum + sink), both sums relative to `top`.
template <class T>
KP_NOINLINE void write_result(T* to, int64_t Dv, const float* sums, float top, float sum, float sink,
                              float factor = 1) {
  const float high = top > sink ? top : sink;
  const float shrink = top == high ? 1.0f : __builtin_expf(top - high);
  const F32x16 share = splat(shrink * factor), total = splat(sum * shrink + __builtin_expf(sink - high));
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, load(sums + d) / total * share, lanes_left(Dv - d));
}

// Splits partial(0), partial(1), ... of one query head become its result; `row` has room for Dv floats.
template <class T, class Partials>
KP_NOINLINE void merge_splits(T* to, int64_t Dv, int64_t splits, const Partials& partial, float sink,
                              float* row) {
  mark(paths::decode_merged);
  float high = sink;
  for (int64_t s = 0; s < splits; ++s) high = __builtin_fmaxf(high, partial(s).load_lse());
  float total = __builtin_expf(sink - high);
  for (int64_t d = 0; d < Dv; ++d) row[d] = 0;
  for (int64_t s = 0; s < splits; ++s) {
    const Partial part = partial(s);
    const float weight = __builtin_expf(part.load_lse() - high);
    total += weight;
    for (int64_t d = 0; d < Dv; d += kLanes) {
      const int live = lanes_left(Dv - d);
      store(row + d, fma(splat(weight), load(part.row + d, live), load(row + d)), live);
    }
  }
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, load(row + d) / splat(total), lanes_left(Dv - d));
}

template <class T>
void write_zeros(T* to, int64_t Dv) {
  mark(paths::decode_no_keys);
  for (int64_t d = 0; d < Dv; d += kLanes) store(to + d, zero(), lanes_left(Dv - d));
}

}  // namespace
}  // namespace kernelpair::KP_TIER
