// topk_gating: a token's experts and their weights. exp and the sigmoid rise with their argument, so without a
// bias experts are chosen by their logits, and scores are computed of the chosen alone; only weights that are
// not renormalized need the sum over all. With a bias every score is computed, and those of the chosen again: a
// quotient of two of them does not know the sum.
#include "kernels/topk_gating.h"

#include "core/parallel.h"
#include "core/path.h"
#include "core/scratch.h"
#include "simd/dtypes.h"
#include "simd/lanes.h"
#include "simd/vec_math.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainElements = 8 << 10;                          // about 5 us
constexpr float kLargest = __FLT_MAX__, kTaken = -__builtin_inff();  // no key that may be chosen is as small

KP_PATH(topk_plain);
KP_PATH(topk_groups);
KP_PATH(topk_bias);
KP_PATH(topk_sum_of_all);
KP_PATH(topk_not_a_number);
KP_PATH(topk_pads);

KP_INLINE F32x16 load_or_taken(const float* from, int lanes) {
  return lanes == kLanes ? load(from) : select(first_lanes(lanes), load(from, lanes), splat(kTaken));
}

// Where x first stands; it does stand somewhere.
KP_INLINE int64_t find(const float* from, float x) {
  for (int64_t i = 0;; i += kLanes) {
    const Mask16 found = equal(load(from + i), splat(x));
    if (any(found)) return i + first_lane(found);
  }
}

// Gives out the largest of its keys, one after the other; of equal ones the first.
struct Ranking {
  float* keys;  // whole vectors, padded with kTaken
  float* tops;  // the largest of each sixteen keys, in whole vectors too
  int64_t blocks, tops_width;

  Ranking(float* given, float* room, int64_t count)
      : keys(given), tops(room), blocks(divide_up(count, kLanes)), tops_width(round_up(blocks, kLanes)) {
    for (int64_t b = 0; b < tops_width; ++b)
      tops[b] = b < blocks ? reduce_max(load(keys + b * kLanes)) : kTaken;
  }

  int64_t take() {
    F32x16 highest = load(tops);
    for (int64_t i = kLanes; i < tops_width; i += kLanes) highest = max(highest, load(tops + i));
    const float top = reduce_max(highest);
    const int64_t block = find(tops, top), lane = find(keys + block * kLanes, top);
    const F32x16 left = select(one_lane(lane), splat(kTaken), load(keys + block * kLanes));
    store(keys + block * kLanes, left);
    // A whole vector: one entry that is stored alone would have to reach the next load past the others.
    float* const row = tops + block / kLanes * kLanes;
    store(row, select(one_lane(block % kLanes), splat(reduce_max(left)), load(row)));
    return block * kLanes + lane;
  }
};

KP_INLINE float best(const float* keys, int64_t count) {
  F32x16 top = splat(kTaken);
  for (int64_t i = 0; i < count; i += kLanes) top = max(top, load_or_taken(keys + i, lanes_left(count - i)));
  return reduce_max(top);
}

KP_INLINE float sum_of_two_best(const float* keys, int64_t count) {
  F32x16 first = splat(kTaken), second = first;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32x16 key = load_or_taken(keys + i, lanes_left(count - i));
    second = max(second, min(first, key));
    first = max(first, key);
  }
  const float top = reduce_max(first);
  const int lane = first_lane(equal(first, splat(top)));
  const float sum = top + reduce_max(select(one_lane(lane), second, first));
  return sum < -kLargest ? -kLargest : sum;
}

// The memory of one thread; all arrays are whole vectors.
struct Room {
  float *logits, *keys, *groups, *tops, *chosen;
  Room(char* base, int64_t experts, int64_t topk) : used{base} {
    logits = take(experts), keys = take(experts), groups = take(experts);
    tops = take(divide_up(experts, kLanes)), chosen = take(topk);
  }
  int64_t bytes() const { return used.used; }

 private:
  BumpAllocator used;
  float* take(int64_t count) { return used.take<float>(round_up(count, kLanes)); }
};

// A logit as a key: -inf comes last among those that may be taken, a number as small right before it.
KP_INLINE F32x16 key_of(F32x16 z) {
  const F32x16 lowest = splat(-kLargest), next = splat(-__builtin_nextafterf(kLargest, 0));
  return max(select(equal(z, lowest), next, z), lowest);
}

struct Row {
  const TopkGatingArguments& call;
  const Room& room;
  const float* bias;  // of all experts, null without
  int64_t experts, topk;
  float top = 0, inverse_sum = 0;  // largest logit; 1 over the sum of all exp(logit - top)

  template <class T>
  bool read(const T* from) {
    F32x16 highest = splat(kTaken);
    Mask16 finite = first_lanes(kLanes);  // or -inf
    for (int64_t i = 0; i < experts; i += kLanes) {
      const int lanes = lanes_left(experts - i);
      const Mask16 there = first_lanes(lanes);
      const F32x16 z = select(there, load(from + i, lanes), splat(kTaken));
      finite = finite & less_equal(z, splat(kLargest));
      highest = max(highest, z);
      store(room.logits + i, z);
      store(room.keys + i, select(there, key_of(z), splat(kTaken)));
    }
    const float found = reduce_max(highest);
    top = found == kTaken ? 0 : found;  // a row of -inf: every score is 0
    return !any(~finite);
  }

  KP_INLINE F32x16 score(F32x16 z) const { return call.sigmoid ? sigmoid(z) : exp(z - splat(top)); }

  void sum_all() {
    F32x16 sum = zero();
    for (int64_t i = 0; i < experts; i += kLanes) {
      const F32x16 e = exp(load(room.logits + i) - splat(top));
      if (bias) store(room.keys + i, e);
      sum = sum + e;
    }
    const float total = reduce_add(sum);
    inverse_sum = total > 0 ? 1 / total : 0;
  }

  void add_bias() const {
    for (int64_t i = 0; i < experts; i += kLanes) {
      const F32x16 s =
          call.sigmoid ? sigmoid(load(room.logits + i)) : load(room.keys + i) * splat(inverse_sum);
      store(room.keys + i, select(first_lanes(lanes_left(experts - i)), s + load(bias + i), splat(kTaken)));
    }
  }

  void drop_groups() const {
    const int64_t groups = call.num_expert_group, size = experts / groups;
    for (int64_t g = 0; g < round_up(groups, kLanes); ++g) {
      const float* keys = room.keys + g * size;
      room.groups[g] = g >= groups ? kTaken : bias ? sum_of_two_best(keys, size) : best(keys, size);
    }
    Ranking ranking(room.groups, room.tops, groups);
    for (int64_t n = 0; n < call.topk_group; ++n) ranking.take();
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t i = g * size; room.groups[g] != kTaken && i < (g + 1) * size; ++i) room.keys[i] = kTaken;
  }

  void choose(int32_t* ids) const {
    Ranking ranking(room.keys, room.tops, experts);
    for (int64_t j = 0; j < topk; ++j) {
      ids[j] = static_cast<int32_t>(ranking.take());
      room.chosen[j] = room.logits[ids[j]];
    }
  }

  void weigh(float* weights) const {
    F32x16 sum = zero();
    for (int64_t j = 0; j < topk; j += kLanes) {
      const F32x16 live = select(first_lanes(lanes_left(topk - j)), score(load(room.chosen + j)), zero());
      store(room.chosen + j, live);
      sum = sum + live;
    }
    const float total = reduce_add(sum);
    for (int64_t j = 0; j < topk; j += kLanes) {
      F32x16 w = load(room.chosen + j);
      if (call.renormalize)
        w = total > 0 ? w / splat(total) : zero();
      else if (!call.sigmoid)
        w = w * splat(inverse_sum);
      store(weights + j, w * splat(call.scaling_factor), lanes_left(topk - j));
    }
  }
};

void fill(float* weights, int32_t* ids, int64_t topk, float weight, bool pad) {
  for (int64_t j = 0; j < topk; ++j) weights[j] = weight, ids[j] = pad ? -1 : static_cast<int32_t>(j);
}

template <class T>
void run_row(Row& row, int64_t t) {
  float* weights = at<float>(row.call.weights, t);
  int32_t* ids = at<int32_t>(row.call.ids, t);
  if (t >= row.call.num_valid) {
    mark(paths::topk_pads);
    return fill(weights, ids, row.topk, 0, true);
  }
  if (!row.read(at<T>(row.call.logits, t)) || (row.bias && __builtin_isnan(row.bias[0]))) {
    mark(paths::topk_not_a_number);
    return fill(weights, ids, row.topk, __builtin_nanf(""), false);
  }
  const bool grouped = row.call.topk_group < row.call.num_expert_group;
  if (!row.call.sigmoid && (row.bias || !row.call.renormalize)) row.sum_all();
  if (row.bias) row.add_bias();
  if (grouped) row.drop_groups();
  row.choose(ids);
  row.weigh(weights);
}

// In float32, padded to whole vectors; null without one. A bias that is no finite number leaves no order: NaN in
// [0].
const float* read_bias(const View& bias, float* to) {
  if (!bias.defined) return nullptr;
  const int64_t count = bias.sizes[0], stride = bias.strides[0];
  Mask16 finite = first_lanes(kLanes);
  with_float(bias.dtype, [&](auto element) {
    const auto* from = static_cast<const decltype(element)*>(bias.data);
    for (int64_t i = 0; i < count; i += kLanes) {
      const int lanes = lanes_left(count - i);
      F32x16 values;
      if (stride == 1) {
        values = load(from + i, lanes);
      } else {
        decltype(element) gathered[kLanes] = {};
        for (int lane = 0; lane < lanes; ++lane) gathered[lane] = from[(i + lane) * stride];
        values = load(gathered);
      }
      finite = finite & less_equal(abs(values), splat(kLargest));
      store(to + i, values);
    }
  });
  if (any(~finite)) to[0] = __builtin_nanf("");
  return to;
}

}  // namespace

void topk_gating(const TopkGatingArguments& call) {
  const int64_t T = call.logits.sizes[0], E = call.logits.sizes[1], topk = call.ids.sizes[1];
  const float* bias = nullptr;
  if (call.correction_bias.defined)
    bias = read_bias(
        call.correction_bias,
        static_cast<float*>(call_scratch(round_up(E, kLanes) * static_cast<int64_t>(sizeof(float)))));
  const bool grouped = call.topk_group < call.num_expert_group;
  mark(grouped ? paths::topk_groups : paths::topk_plain);
  if (bias) mark(paths::topk_bias);
  if (!call.renormalize && !call.sigmoid) mark(paths::topk_sum_of_all);
  with_float(call.logits.dtype, [&](auto element) {
    parallel_for(T, kGrainElements / (E + 1) + 1, [&](int64_t begin, int64_t end) {
      const Room room(static_cast<char*>(thread_scratch(Room(nullptr, E, topk).bytes())), E, topk);
      Row row{.call = call, .room = room, .bias = bias, .experts = E, .topk = topk};
      for (int64_t t = begin; t < end; ++t) run_row<decltype(element)>(row, t);
    });
  });
}

}  // namespace kernelpair::KP_TIER
