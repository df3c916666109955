// gated_delta_rule_update: one decode step of the gated delta rule on a pool of states, in place. Bound by
// memory: a state is K x V numbers that are read and written once for three operations each. The step of one
// head is in delta_rule/step.h.
//
// Drafts of a request are steps in turn: each reads the state where the one before has left it and writes it to a
// slot of its own. A float32 pool carries it exactly; of a bf16 pool a float32 copy does.
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 warns of its own intrinsics

#include "kernels/gated_delta_rule_update.h"

#include "core/parallel.h"
#include "core/path.h"
#include "core/scratch.h"
#include "delta_rule/step.h"

namespace kernelpair::KP_TIER {
namespace {

// State elements, about 4 us: what waking a thread costs.
constexpr int64_t kGrain = 64 * 1024;

KP_PATH(step_pad);
KP_PATH(spec_step_in_pool);
KP_PATH(spec_step_carried);
KP_PATH(spec_step_pad);

template <class S>
void run(const Call& call) {
  const int64_t requests = call.v.sizes[0], heads = call.v.sizes[1], V = call.v.sizes[2], K = call.q.sizes[2];
  const int64_t group = heads / call.q.sizes[1];
  parallel_for(requests * heads, kGrain / (K * V) + 1, [&](int64_t begin, int64_t end) {
    Keys keys(call);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t request = item / heads, n = item % heads, slot = index_at(call.state_indices, request);
      char* o = at(call.o, request, n);
      if (call.has_pad && slot == call.pad_slot) {
        mark(paths::step_pad);
        __builtin_memset(o, 0, V * element_size(call.o.dtype));
        continue;
      }
      if (item == begin || n % group == 0) keys.start(request, n / group);
      S* state = at<S>(call.state, slot, n);
      step(Head<S>{state, state, call.state.strides[2], at(call.v, request, n), o, V,
                   gates_of(call, request, n)},
           keys);
    }
  });
}

// One head of one request's drafts.
struct Drafts {
  const Call& call;
  Keys& keys;
  int64_t request, head, first, end;  // tokens

  int64_t group() const { return call.v.sizes[1] / call.q.sizes[1]; }
  int64_t slot(int64_t column) const { return index_at(call.state_indices, request, column); }
  bool pad() const { return call.has_pad && slot(0) == call.pad_slot; }

  template <class S>
  void step_token(int64_t token, const S* from, S* to, int64_t row_stride) const {
    keys.start(token, head / group());
    step(Head<S>{from, to, row_stride, at(call.v, token, head), at(call.o, token, head), call.v.sizes[2],
                 gates_of(call, token, head)},
         keys);
  }

  template <class S>
  const S* accepted() const {
    return at<S>(call.state, slot(index_at(call.num_accepted_tokens, request) - 1), head);
  }

  template <class S>
  void in_pool() const {
    mark(paths::spec_step_in_pool);
    const S* from = accepted<S>();
    for (int64_t token = first; token < end; ++token) {
      S* to = at<S>(call.state, slot(token - first), head);
      step_token(token, from, to, call.state.strides[2]);
      from = to;
    }
  }

  void carried() const {
    mark(paths::spec_step_carried);
    const int64_t rows = call.state.sizes[2], width = call.state.sizes[3], stride = call.state.strides[2];
    float* carry = static_cast<float*>(thread_scratch(rows * width * static_cast<int64_t>(sizeof(float))));
    convert(accepted<Bf16>(), stride, carry, width, rows, width);
    for (int64_t token = first; token < end; ++token) {
      step_token<float>(token, carry, carry, width);
      convert(carry, width, at<Bf16>(call.state, slot(token - first), head), stride, rows, width);
    }
  }

  template <class From, class To>
  static void convert(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t rows,
                      int64_t width) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; i += kLanes) {
        const int lanes = lanes_left(width - i);
        store(to + row * to_stride + i, load(from + row * from_stride + i, lanes), lanes);
      }
  }
};

void clear_tokens(const Call& call, int64_t first, int64_t end) {
  const int64_t bytes = call.o.strides[0] * element_size(call.o.dtype);
  if (first < end) __builtin_memset(at(call.o, first), 0, (end - first) * bytes);
}

template <class S>
void run_drafts(const Call& call) {
  const int64_t requests = call.query_start_loc.sizes[0] - 1, heads = call.v.sizes[1];
  const int64_t size = call.state.sizes[2] * call.state.sizes[3];
  clear_tokens(call, 0, index_at(call.query_start_loc, 0));
  clear_tokens(call, index_at(call.query_start_loc, requests), call.v.sizes[0]);
  parallel_for(requests * heads, kGrain / size + 1, [&](int64_t begin, int64_t end) {
    Keys keys(call);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t request = item / heads, head = item % heads;
      const Drafts drafts{call,
                          keys,
                          request,
                          head,
                          index_at(call.query_start_loc, request),
                          index_at(call.query_start_loc, request + 1)};
      if (drafts.first == drafts.end) continue;
      if (drafts.pad()) {
        mark(paths::spec_step_pad);
        if (head == 0) clear_tokens(call, drafts.first, drafts.end);
      } else if (sizeof(S) == sizeof(float) || drafts.end - drafts.first == 1) {
        drafts.in_pool<S>();
      } else {
        drafts.carried();
      }
    }
  });
}

template <class S>
void run_either(const Call& call) {
  if (call.num_accepted_tokens.defined)
    run_drafts<S>(call);
  else
    run<S>(call);
}

}  // namespace

void gated_delta_rule_update(const GatedDeltaRuleUpdateArguments& call) {
  if (element_count(call.v) == 0) return;
  if (call.state.dtype == Dtype::f32)
    run_either<float>(call);
  else
    run_either<Bf16>(call);
}

}  // namespace kernelpair::KP_TIER
