// Attention of many query rows over gathered keys.
//
//   task   one request, one kv head, one group of units (prefill_plan.h): threads take tasks until none is
//          left
//   block  up to 256 keys, gathered by pointer and packed once for all units of the group
//   unit   32 rows: scores of a block, online softmax, weights times values. A row keeps its largest score,
//          its sums of weights (one a lane) and its unnormalised result; the latter is only rescaled when a
//          block brings a larger score.
//
// The products are TileProducts (bf16, where there are tiles) or VectorProducts.
#include "kernels/_prefill.h"

#include "attention/exponents.h"
#include "attention/prefill_plan.h"
#include "attention/prefill_tiles.h"
#include "attention/prefill_vectors.h"
#include "attention/sinks.h"
#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/vec_math.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(prefill_vectors);
KP_PATH(prefill_tiles);
KP_PATH(prefill_masked);
KP_PATH(prefill_whole);
KP_PATH(prefill_settled);
KP_PATH(prefill_rescaled);
KP_PATH(prefill_unseen_block);

Sequence sequence_of(const PrefillArguments& call, int64_t b) {
  return call.keys.sequence(call.keys.self, b);
}

template <class Products>
struct Prefill {
  const PrefillArguments& call;
  Products products;
  const char **key_rows, **value_rows;
  // Scores of one unit; of each row of the group its largest score, its sums of weights.
  float *scores, *top, *total;

  // Which rows of which request and kv head the current task has.
  int64_t request, head, first_row, rows;
  Sequence sequence;
  float scale;  // of raw scores, after which they are exponents of e
  bool started[kMostUnits];

  explicit Prefill(const PrefillArguments& the_call) : call(the_call) {}

  static Blocking plan(const PrefillArguments& call) {
    const int64_t more = call.qv.defined ? round_up(call.value_width, Products::kDepth) : 0;
    return plan_blocking(round_up(call.width, Products::kDepth) + more, call.value_width,
                         Products::kElementBytes);
  }

  void allocate(BumpAllocator& allocator, const Blocking& blocking) {
    products.allocate(allocator, blocking);
    key_rows = allocator.take<const char*>(blocking.keys);
    value_rows = allocator.take<const char*>(blocking.keys);
    scores = allocator.take<float>(kUnitRows * kScoreStride);
    top = allocator.take<float>(blocking.units * kUnitRows);
    total = allocator.take<float>(blocking.units * kUnitRows * kLanes);
  }

  // Of the request and kv head in hand.
  KP_INLINE float descale(const View& factors) const {
    return factors.defined ? *at<float>(factors, request, head) : 1;
  }
  KP_INLINE int64_t position(int64_t row) const { return (first_row + row) / call.group(); }
  KP_INLINE int64_t query_head(int64_t row) const {
    return head * call.group() + (first_row + row) % call.group();
  }
  // Of a packed query or key.
  KP_INLINE int64_t qv_column() const { return round_up(call.width, Products::kDepth); }
  KP_INLINE int64_t unit_rows(int64_t unit) const { return clamp(rows - unit * kUnitRows, 0, kUnitRows); }

  void run(int64_t b, int64_t kv_head, int64_t group) {
    const int64_t most = products.blocking.units * kUnitRows, step = products.blocking.keys;
    request = b;
    head = kv_head;
    sequence = sequence_of(call, b);
    first_row = group * most;
    rows = clamp(sequence.rows * call.group() - first_row, 0, most);
    scale = call.scale * descale(call.k_descale);
    const int64_t units = divide_up(rows, kUnitRows);
    for (int64_t unit = 0; unit < units; ++unit) begin_unit(unit);
    const int64_t end = sequence.high(position(rows - 1));
    for (int64_t first = sequence.low(position(0)); first < end; first += step) {
      const int64_t count = end - first < step ? end - first : step;
      pack_block(first, count);
      for (int64_t unit = 0; unit < units; ++unit) attend(unit, first, count);
    }
    for (int64_t unit = 0; unit < units; ++unit) finish(unit);
  }

 private:
  void begin_unit(int64_t unit) {
    const int64_t live = unit_rows(unit);
    const char *q_rows[kUnitRows], *qv_rows[kUnitRows];
    for (int64_t r = 0; r < kUnitRows; ++r) {
      const int64_t row = unit * kUnitRows + r;
      const bool is_live = r < live;
      const int64_t token = is_live ? sequence.first_row + position(row) : 0;
      q_rows[r] = is_live ? at(call.q, token, query_head(row)) : nullptr;
      qv_rows[r] = is_live && call.qv.defined ? at(call.qv, token, query_head(row)) : nullptr;
      top[row] = -__builtin_inff();
      store(total + row * kLanes, zero());
    }
    products.pack_queries(unit, q_rows, call.q.dtype, 0, call.width);
    if (call.qv.defined) products.pack_queries(unit, qv_rows, call.q.dtype, qv_column(), call.value_width);
    started[unit] = false;
  }

  void pack_block(int64_t first, int64_t count) {
    const int64_t padded = round_up(count, 32);
    call.keys.locate(call.keys.self, request, head, first, count, key_rows, value_rows);
    for (int64_t j = count; j < padded; ++j) key_rows[j] = value_rows[j] = nullptr;
    products.pack_keys(key_rows, padded, call.keys.dtype, 0, call.width);
    if (call.qv.defined)
      products.pack_keys(value_rows, padded, call.keys.dtype, qv_column(), call.value_width);
    products.pack_values(value_rows, padded, call.keys.dtype, call.value_width);
  }

  // One unit against one packed block, or the part of it that some row sees.
  void attend(int64_t unit, int64_t first, int64_t count) {
    const int64_t live = unit_rows(unit), top_row = position(unit * kUnitRows),
                  last_row = position(unit * kUnitRows + live - 1);
    const int64_t begin = clamp(sequence.low(top_row) - first, 0, count) / 32 * 32;
    const int64_t seen = clamp(sequence.high(last_row) - first, 0, count), end = round_up(seen, 32);
    if (begin >= end) return mark(paths::prefill_unseen_block);
    products.score(unit, live, begin, end, scores);
    const bool whole = sequence.low(last_row) <= first + begin && sequence.high(top_row) >= first + end;
    mark(whole ? paths::prefill_whole : paths::prefill_masked);
    if (!is_plain()) settle(unit, live, first, begin, end);
    if (whole)
      weigh<false>(unit, live, first, begin, end);
    else
      weigh<true>(unit, live, first, begin, end);
    products.accumulate(unit, live, begin, end, !started[unit], scores);
    started[unit] = true;
  }

  // Whether the exponent's factor does all that is done to a score.
  KP_INLINE bool is_plain() const {
    return call.cap == 0 && scale > 0 && scale <= kMostFactor && !call.slopes;
  }

  // Scale, cap and slope now, where it cannot.
  void settle(int64_t unit, int64_t live, int64_t first, int64_t begin, int64_t end) {
    mark(paths::prefill_settled);
    for (int64_t r = 0; r < live; ++r) {
      const int64_t row = unit * kUnitRows + r;
      const int64_t at_row = position(row) + sequence.keys - sequence.rows;  // among the keys
      const F32x16 slope = splat(call.slopes ? call.slopes[query_head(row)] : 0);
      for (int64_t j = begin; j < end; j += kLanes) {
        float* at_j = scores + r * kScoreStride + j;
        F32x16 z = load(at_j) * splat(scale);
        if (call.cap > 0) z = splat(call.cap) * tanh(z / splat(call.cap));
        const I32x16 distance = lane_numbers() + splat_int(static_cast<int32_t>(first + j - at_row));
        store(at_j, call.slopes ? z + slope * to_float(distance) : z);
      }
    }
  }

  // Scores become weights: exp2(factor (score - largest so far)).
  template <bool kMasked>
  void weigh(int64_t unit, int64_t live, int64_t first, int64_t begin, int64_t end) {
    const float factor = (is_plain() ? scale : 1) * kLog2E;
    for (int64_t r = 0; r < live; ++r) {
      float* row = scores + r * kScoreStride;
      const int64_t id = unit * kUnitRows + r;
      if constexpr (kMasked)
        mask(row, sequence.low(position(id)) - first, sequence.high(position(id)) - first, begin, end);
      F32x16 largest = load(row + begin);
      for (int64_t j = begin + kLanes; j < end; j += kLanes) largest = max(largest, load(row + j));
      const float before = top[id], now = reduce_max(max(largest, splat(before)));
      F32x16 sum = load(total + id * kLanes), more = zero();
      if (now > before) {
        top[id] = now;
        if (before != -__builtin_inff()) {
          mark(paths::prefill_rescaled);
          const F32x16 shrink = exp2(splat(factor) * splat(before - now));
          sum = sum * shrink;
          rescale(unit, r, shrink);
        }
      }
      // Subtracted first, so that the largest score gives exactly 1, however large it is.
      const F32x16 base = splat(now == -__builtin_inff() ? 0 : now);
      for (int64_t j = begin; j < end; j += 32) {
        const F32x16 low = exp2((load(row + j) - base) * splat(factor));
        const F32x16 high = exp2((load(row + j + kLanes) - base) * splat(factor));
        sum = sum + low;
        more = more + high;
        products.store_weights(scores, r, j, low, high);
      }
      store(total + id * kLanes, sum + more);
    }
  }

  // Only what lies before the first whole vector of seen keys, and what follows the last.
  KP_INLINE static void mask(float* row, int64_t low, int64_t high, int64_t begin, int64_t end) {
    low = clamp(low, begin, end);
    high = clamp(high, begin, end);
    const int64_t first = round_up(low, kLanes), last = high / kLanes * kLanes;
    mask_part(row, low, high, begin, first < last ? first : end);
    if (first < last) mask_part(row, low, high, last, end);
  }

  KP_INLINE static void mask_part(float* row, int64_t low, int64_t high, int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j += kLanes) {
      const I32x16 key = lane_numbers() + splat_int(static_cast<int32_t>(j));
      const Mask16 seen =
          ~less(key, splat_int(static_cast<int32_t>(low))) & less(key, splat_int(static_cast<int32_t>(high)));
      store(row + j, select(seen, load(row + j), splat(-__builtin_inff())));
    }
  }

  KP_INLINE void rescale(int64_t unit, int64_t row, F32x16 factor) {
    float* sums = products.sum_row(unit, row);
    for (int64_t n = 0; n < products.blocking.value_tiles; ++n, sums += Products::kSumStride)
      store(sums, load(sums) * factor);
  }

  // Divide and write; the sink takes its share of the denominator.
  void finish(int64_t unit) {
    with_float(call.out.dtype, [&](auto element) {
      for (int64_t r = 0; r < unit_rows(unit); ++r) finish_row<decltype(element)>(unit, r);
    });
  }

  template <class T>
  void finish_row(int64_t unit, int64_t r) {
    const int64_t id = unit * kUnitRows + r, h = query_head(id), i = position(id);
    T* to = at<T>(call.out, sequence.first_row + i, h);
    const bool seen = sequence.low(i) < sequence.high(i);
    const float m = top[id] * (is_plain() ? scale : 1), s = sink_of(call.sinks, h);
    const float largest = s > m ? s : m;
    const float share = exp_one(m - largest);
    const float denominator = reduce_add(load(total + id * kLanes)) * share + exp_one(s - largest);
    const F32x16 factor = splat(share * descale(call.v_descale) / denominator);
    const float* sums = products.sum_row(unit, r);
    for (int64_t d = 0; d < call.value_width; d += kLanes, sums += Products::kSumStride)
      store(to + d, seen ? load(sums) * factor : zero(), lanes_left(call.value_width - d));
  }

  // Most rows have no sink, or one that is no larger than their scores.
  KP_INLINE static float exp_one(float x) {
    return x == 0 ? 1 : x == -__builtin_inff() ? 0 : exp(splat(x)).p[0][0];
  }
};

// Tasks of a call in one sequence: request by request, group by group, the kv heads of a group side by side.
int64_t count_groups(const PrefillArguments& call, int64_t b, int64_t rows) {
  return divide_up(sequence_of(call, b).rows * call.group(), rows);
}

template <class Products>
void run(const PrefillArguments& call) {
  using Engine = Prefill<Products>;
  const Blocking blocking = Engine::plan(call);
  const int64_t group_rows = blocking.units * kUnitRows;
  int64_t tasks = 0;
  for (int64_t b = 0; b < call.requests; ++b) tasks += count_groups(call, b, group_rows) * call.kv_heads;
  const int64_t threads = thread_count() < tasks ? thread_count() : tasks;
  int64_t next = 0;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    BumpAllocator measure{nullptr};
    Engine engine(call);
    engine.allocate(measure, blocking);
    BumpAllocator allocator{static_cast<char*>(thread_scratch(measure.used))};
    engine.allocate(allocator, blocking);
    [[maybe_unused]] typename Products::Scope scope;
    (void)begin, (void)end;
    int64_t b = 0, before = 0;  // `before`: tasks of the requests before b
    for (int64_t task; (task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < tasks;) {
      int64_t own;
      while (task - before >= (own = count_groups(call, b, group_rows) * call.kv_heads)) before += own, ++b;
      const int64_t groups = own / call.kv_heads, index = task - before;
      engine.run(b, index % call.kv_heads, groups - 1 - index / call.kv_heads);  // the longest first
    }
  });
}

}  // namespace

void _prefill(const PrefillArguments& call) {
  const bool tiles = kHasTiles && call.q.dtype == Dtype::bf16;
  mark(tiles ? paths::prefill_tiles : paths::prefill_vectors);
  if constexpr (kHasTiles)
    if (tiles) return run<TileProducts>(call);
  run<VectorProducts>(call);
}

}  // namespace kernelpair::KP_TIER
