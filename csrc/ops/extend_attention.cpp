// extend_attention: checks and registration. Contract: docs/contracts/extend_attention.md.
#include <algorithm>
#include <vector>

#include "attention/checks.h"
#include "core/operator.h"
#include "kernels/extend_attention.h"

namespace kernelpair {
namespace {

struct ExtendRequests {
  const View &pools, &lengths, &extends, &starts, &encoders;  // encoders may be absent
  int64_t window;
  bool cross;

  int64_t count() const { return pools.sizes[0]; }
  int64_t encoder_length(int64_t b) const { return encoders.defined ? index_at(encoders, b) : 0; }

  // The columns of the request table that request b reads, [first, last).
  struct Columns {
    int64_t first, last;
  };
  Columns used(int64_t b) const {
    const int64_t rows = index_at(extends, b), prefix = index_at(lengths, b) - rows,
                  encoder = encoder_length(b);
    if (rows == 0) return {0, 0};
    if (cross) return {0, encoder};
    const int64_t hidden = window > 0 && window <= prefix ? std::min(prefix - window + 1, prefix) : 0;
    return {encoder + hidden, encoder + prefix};
  }
};

void check_lengths(const ExtendRequests& requests, int64_t tokens, int64_t columns) {
  for (int64_t b = 0; b < requests.count(); ++b) {
    const int64_t keys = index_at(requests.lengths, b), rows = index_at(requests.extends, b);
    const int64_t start = index_at(requests.starts, b), encoder = requests.encoder_length(b);
    KP_CHECK_VALUE(keys >= 0, "seq_lens[", b, "] = ", keys, " is negative");
    KP_CHECK_VALUE(rows >= 0, "extend_seq_lens[", b, "] = ", rows, " is negative");
    KP_CHECK_VALUE(encoder >= 0, "encoder_lens[", b, "] = ", encoder, " is negative");
    KP_CHECK_VALUE(keys >= rows, "seq_lens[", b, "] = ", keys, " is less than extend_seq_lens[", b,
                   "] = ", rows);
    KP_CHECK_INDEX(start >= 0 && start <= tokens && rows <= tokens - start, "extend_start_loc[", b,
                   "] = ", start, " with extend_seq_lens[", b, "] = ", rows, " is outside [0, ", tokens, ")");
    KP_CHECK_INDEX(encoder <= columns, "encoder_lens[", b, "] = ", encoder, " is more than the ", columns,
                   " columns of req_to_token");
    KP_CHECK_INDEX(requests.cross || keys <= columns - encoder, "seq_lens[", b, "] = ", keys, " (behind ",
                   encoder, " encoder slots) passes the ", columns, " columns of req_to_token");
  }
}

void check_segments(const ExtendRequests& requests) {
  struct Segment {
    int64_t start, end, request;
  };
  std::vector<Segment> segments;
  for (int64_t b = 0; b < requests.count(); ++b) {
    const int64_t start = index_at(requests.starts, b), rows = index_at(requests.extends, b);
    if (rows) segments.push_back({start, start + rows, b});
  }
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.start < b.start; });
  for (size_t i = 1; i < segments.size(); ++i)
    KP_CHECK_VALUE(segments[i].start >= segments[i - 1].end, "extend_start_loc: the rows of requests ",
                   segments[i - 1].request, " and ", segments[i].request, " overlap");
}

// Shapes that agree; a cache that no request reads may have other heads and widths.
AttentionSizes checked_sizes(const ExtendRequests& requests, const View& q, const View& k, const View& v,
                             const View& k_cache, const View& v_cache, const View& out) {
  bool reads_cache = requests.cross;
  for (int64_t b = 0; b < requests.count(); ++b)
    reads_cache |= requests.used(b).first < requests.used(b).last;
  const View &keys = requests.cross ? k_cache : k, &values = requests.cross ? v_cache : v;
  const int64_t tokens = q.sizes[0], slots = k_cache.sizes[0], heads = q.sizes[1], D = q.sizes[2];
  const int64_t kv_heads = keys.sizes[1], Dv = values.sizes[2];
  check_shape({"v_cache", v_cache}, {slots, v_cache.sizes[1], v_cache.sizes[2]});
  if (!requests.cross) {
    check_shape({"k", k}, {tokens, kv_heads, D});
    check_shape({"v", v}, {tokens, kv_heads, Dv});
  }
  if (reads_cache) {
    check_shape({"k_cache", k_cache}, {slots, kv_heads, D});
    check_shape({"v_cache", v_cache}, {slots, kv_heads, Dv});
  }
  check_shape({"out", out}, {tokens, heads, Dv});
  return {heads, kv_heads, D, Dv, q.dtype};
}

void extend_attention(const Tensor& q_in, const std::optional<Tensor>& k_in,
                      const std::optional<Tensor>& v_in, const Tensor& out_in, const Tensor& k_cache_in,
                      const Tensor& v_cache_in, const Tensor& req_to_token_in,
                      const Tensor& req_pool_indices_in, const Tensor& seq_lens_in,
                      const Tensor& extend_seq_lens_in, const Tensor& extend_start_loc_in,
                      const std::optional<Tensor>& encoder_lens_in, const std::optional<Tensor>& sinks_in,
                      double sm_scale, double logit_cap, int64_t sliding_window, bool is_cross_attn) {
  const View q = view_of("q", q_in), out = view_of("out", out_in);
  // Out may overlap neither, and both have its dtype, read or not.
  const View k_given = view_of("k", k_in), v_given = view_of("v", v_in);
  const View k = is_cross_attn ? View{} : k_given, v = is_cross_attn ? View{} : v_given;
  const View k_cache = view_of("k_cache", k_cache_in), v_cache = view_of("v_cache", v_cache_in);
  const View table = view_of("req_to_token", req_to_token_in), sinks = view_of("sinks", sinks_in);
  const View pools = view_of("req_pool_indices", req_pool_indices_in),
             lengths = view_of("seq_lens", seq_lens_in);
  const View extends = view_of("extend_seq_lens", extend_seq_lens_in);
  const View starts = view_of("extend_start_loc", extend_start_loc_in),
             encoders = view_of("encoder_lens", encoder_lens_in);

  KP_CHECK_VALUE(is_cross_attn || k.defined,
                 "k is None, but only a cross-attention call works without new keys");
  KP_CHECK_VALUE(is_cross_attn || v.defined,
                 "v is None, but only a cross-attention call works without new keys");
  KP_CHECK_VALUE(!is_cross_attn || encoders.defined,
                 "encoder_lens is None, but cross attention needs the encoder's lengths");
  check_dense(3, {{"q", q}, {"out", out}, {"k", k}, {"v", v}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  check_float({"q", q});
  check_same_dtype(
      {"q", q}, {{"out", out}, {"k", k_given}, {"v", v_given}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  check_rank({"req_pool_indices", pools}, 1);
  const int64_t batch = pools.sizes[0];
  check_index_vectors(batch, {{"req_pool_indices", pools},
                              {"seq_lens", lengths},
                              {"extend_seq_lens", extends},
                              {"extend_start_loc", starts},
                              {"encoder_lens", encoders}});
  check_rank({"req_to_token", table}, 2);
  check_index_dtype({"req_to_token", table});
  check_indices_in_range({"req_pool_indices", pools}, table.sizes[0]);
  const ExtendRequests requests{pools, lengths, extends, starts, encoders, sliding_window, is_cross_attn};
  const int64_t slots = k_cache.sizes[0];
  check_lengths(requests, q.sizes[0], table.sizes[1]);
  check_segments(requests);
  check_attention(checked_sizes(requests, q, k, v, k_cache, v_cache, out), sm_scale, logit_cap, sinks);
  for (int64_t b = 0; b < batch; ++b) {
    const ExtendRequests::Columns used = requests.used(b);
    check_table_entries({"req_to_token", table}, index_at(pools, b), used.first, used.last - used.first,
                        slots, b);
  }
  check_disjoint({{"out", out}}, {{"q", q},
                                  {"k", k_given},
                                  {"v", v_given},
                                  {"k_cache", k_cache},
                                  {"v_cache", v_cache},
                                  {"req_to_token", table},
                                  {"req_pool_indices", pools},
                                  {"seq_lens", lengths},
                                  {"extend_seq_lens", extends},
                                  {"extend_start_loc", starts},
                                  {"encoder_lens", encoders},
                                  {"sinks", sinks}});
  kernels::extend_attention({.q = q,
                             .k = k,
                             .v = v,
                             .out = out,
                             .k_cache = k_cache,
                             .v_cache = v_cache,
                             .req_to_token = table,
                             .req_pool_indices = pools,
                             .seq_lens = lengths,
                             .extend_seq_lens = extends,
                             .extend_start_loc = starts,
                             .encoder_lens = encoders,
                             .sinks = sinks,
                             .sm_scale = static_cast<float>(sm_scale),
                             .logit_cap = static_cast<float>(logit_cap),
                             .sliding_window = sliding_window,
                             .is_cross_attn = is_cross_attn});
}

}  // namespace

KP_OPERATOR(
    extend_attention,
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) out, Tensor k_cache, Tensor v_cache, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, Tensor? "
    "encoder_lens, "
    "Tensor? sinks, float sm_scale, float logit_cap=0.0, int sliding_window=0, bool is_cross_attn=False) -> "
    "()");

}  // namespace kernelpair
