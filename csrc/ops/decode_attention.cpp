// decode_attention: checks and registration. Contract: docs/contracts/decode_attention.md.
#include <cmath>

#include "attention/checks.h"
#include "attention/slot_range.h"
#include "core/operator.h"
#include "kernels/decode_attention.h"

namespace kernelpair {
namespace {

// v_cache is k_cache[..., :Dv]: the same first byte and equal outer strides, those of size-1 dimensions
// aside.
bool shares_buffer(const View& k_cache, const View& v_cache) {
  for (int d = 0; d < 2; ++d) {
    if (k_cache.sizes[d] != v_cache.sizes[d]) return false;
    if (k_cache.sizes[d] != 1 && k_cache.strides[d] != v_cache.strides[d]) return false;
  }
  return k_cache.data == v_cache.data && v_cache.sizes[2] <= k_cache.sizes[2];
}

void check_new_rows(const View& key, const View& value, const View& loc, const View& k_cache,
                    const View& v_cache, int64_t batch, bool shared, Pad pad) {
  const int64_t heads = v_cache.sizes[1];
  if (value.defined) check_shape({"value", value}, {batch, heads, v_cache.sizes[2]});
  if (!key.defined) {
    KP_CHECK_VALUE(!value.defined, "value is given without key");
    return;
  }
  check_shape({"key", key}, {batch, heads, k_cache.sizes[2]});
  KP_CHECK_VALUE(value.defined || shared, "key is given without value, but v_cache is not part of k_cache");
  check_indices_in_range({"loc", loc}, k_cache.sizes[0], pad);
  check_no_duplicates({"loc", loc}, pad);
}

// Slots of new keys, which also tell the pads.
void check_loc(const View& loc, bool key, Pad pad, int64_t batch) {
  if (!key && !pad.given) return;
  KP_CHECK_VALUE(loc.defined, key ? "key" : "pad_slot", " is given without loc");
  check_index_dtype({"loc", loc});
  check_shape({"loc", loc}, {batch});
}

void check_requests(const SlotRequests& requests, const View& req_to_token, int64_t slots) {
  const int64_t rows = req_to_token.sizes[0], columns = req_to_token.sizes[1];
  const char* name = requests.is_cross_attn ? "encoder_lens" : "seq_lens";
  for (int64_t b = 0; b < requests.req_pool_indices.sizes[0]; ++b) {
    if (requests.is_pad(b)) continue;
    const int64_t row = index_at(requests.req_pool_indices, b);
    KP_CHECK_INDEX(row >= 0 && row < rows, "req_pool_indices[", b, "] = ", row, " is outside [0, ", rows,
                   ")");
    const int64_t length = requests.length(b), offset = requests.offset(b);
    KP_CHECK_VALUE(length >= 0, name, "[", b, "] = ", length, " is negative");
    KP_CHECK_VALUE(offset >= 0, "encoder_lens[", b, "] = ", offset, " is negative");
    KP_CHECK_INDEX(offset <= columns && length <= columns - offset, name, "[", b, "] = ", length,
                   " behind encoder_lens ", offset, " exceeds the ", columns, " columns of req_to_token");
    const SlotRange range = requests.range(b);
    check_table_entries({"req_to_token", req_to_token}, range.row, range.column, range.keys, slots, b);
  }
}

// Types, shapes and layouts of the float tensors.
void check_tensors(const View& q, const View& k_cache, const View& v_cache, const View& out, const View& key,
                   const View& value, const View& attn_logits) {
  check_dense(
      3,
      {{"q", q}, {"k_cache", k_cache}, {"v_cache", v_cache}, {"out", out}, {"key", key}, {"value", value}});
  check_dense(4, {{"attn_logits", attn_logits}});
  check_float({"q", q});
  check_same_dtype(
      {"q", q}, {{"k_cache", k_cache}, {"v_cache", v_cache}, {"out", out}, {"key", key}, {"value", value}});
  check_dtype({"attn_logits", attn_logits}, {Dtype::f32});
  const int64_t batch = q.sizes[0], heads = q.sizes[1], D = q.sizes[2];
  const int64_t Dv = v_cache.sizes[2];
  check_shape({"k_cache", k_cache}, {v_cache.sizes[0], v_cache.sizes[1], D});
  check_shape({"out", out}, {batch, heads, Dv});
  KP_CHECK_VALUE(attn_logits.sizes[2] >= 1, "attn_logits must have room for one split, got shape ",
                 shape_of(attn_logits));
  check_shape({"attn_logits", attn_logits}, {batch, heads, attn_logits.sizes[2], Dv + 1});
}

void decode_attention(const Tensor& q_in, const Tensor& k_cache_in, const Tensor& v_cache_in,
                      const Tensor& out_in, const std::optional<Tensor>& key_in,
                      const std::optional<Tensor>& value_in, const std::optional<Tensor>& loc_in,
                      const Tensor& attn_logits_in, const Tensor& req_to_token_in,
                      const Tensor& req_pool_indices_in, const Tensor& seq_lens_in,
                      const std::optional<Tensor>& encoder_lens_in, const std::optional<Tensor>& sinks_in,
                      double sm_scale, double logit_cap, int64_t sliding_window, bool is_cross_attn,
                      std::optional<int64_t> pad_slot) {
  const View q = view_of("q", q_in), out = view_of("out", out_in),
             attn_logits = view_of("attn_logits", attn_logits_in);
  const View k_cache = view_of("k_cache", k_cache_in), v_cache = view_of("v_cache", v_cache_in);
  const View key = view_of("key", key_in), value = view_of("value", value_in),
             sinks = view_of("sinks", sinks_in);
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  const View loc = key.defined || pad.given ? view_of("loc", loc_in) : View{};
  const View req_to_token = view_of("req_to_token", req_to_token_in),
             seq_lens = view_of("seq_lens", seq_lens_in);
  const View req_pool_indices = view_of("req_pool_indices", req_pool_indices_in);
  const View encoder_lens = view_of("encoder_lens", encoder_lens_in);

  check_tensors(q, k_cache, v_cache, out, key, value, attn_logits);
  const int64_t batch = q.sizes[0], heads = q.sizes[1], D = q.sizes[2];
  const int64_t slots = v_cache.sizes[0], kv_heads = v_cache.sizes[1], Dv = v_cache.sizes[2];
  const bool shared = shares_buffer(k_cache, v_cache);
  check_loc(loc, key.defined, pad, batch);
  check_new_rows(key, value, loc, k_cache, v_cache, batch, shared, pad);
  check_attention({heads, kv_heads, D, Dv, q.dtype}, sm_scale, logit_cap, sinks);

  check_rank({"req_to_token", req_to_token}, 2);
  check_index_dtype({"req_to_token", req_to_token});
  check_index_vectors(
      batch,
      {{"req_pool_indices", req_pool_indices}, {"seq_lens", seq_lens}, {"encoder_lens", encoder_lens}});
  KP_CHECK_VALUE(encoder_lens.defined || !is_cross_attn, "encoder_lens is required in cross attention");
  check_requests({.req_pool_indices = req_pool_indices,
                  .seq_lens = seq_lens,
                  .encoder_lens = encoder_lens,
                  .loc = loc,
                  .sliding_window = sliding_window,
                  .is_cross_attn = is_cross_attn,
                  .has_pad = pad.given,
                  .pad_slot = pad.slot},
                 req_to_token, slots);

  const View none, k_written = key.defined ? k_cache : none,
                   v_written = key.defined && !shared ? v_cache : none;
  const View k_read = key.defined ? none : k_cache, v_read = (key.defined || shared) ? none : v_cache;
  check_disjoint({{"k_cache", k_written}, {"v_cache", v_written}, {"out", out}, {"attn_logits", attn_logits}},
                 {{"q", q},
                  {"key", key},
                  {"value", value},
                  {"loc", loc},
                  {"k_cache", k_read},
                  {"v_cache", v_read},
                  {"req_to_token", req_to_token},
                  {"req_pool_indices", req_pool_indices},
                  {"seq_lens", seq_lens},
                  {"encoder_lens", encoder_lens},
                  {"sinks", sinks}});
  if (!shared) check_apart({"k_cache", k_cache}, {"v_cache", v_cache});
  kernels::decode_attention({.q = q,
                             .k_cache = k_cache,
                             .v_cache = v_cache,
                             .out = out,
                             .key = key,
                             .value = value,
                             .loc = loc,
                             .attn_logits = attn_logits,
                             .req_to_token = req_to_token,
                             .req_pool_indices = req_pool_indices,
                             .seq_lens = seq_lens,
                             .encoder_lens = encoder_lens,
                             .sinks = sinks,
                             .sm_scale = static_cast<float>(sm_scale),
                             .logit_cap = static_cast<float>(logit_cap),
                             .sliding_window = sliding_window,
                             .is_cross_attn = is_cross_attn,
                             .has_pad = pad.given,
                             .pad_slot = pad.slot,
                             .shared = shared});
}

}  // namespace

KP_OPERATOR(decode_attention,
            "(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) out, Tensor? key, Tensor? value, "
            "Tensor? loc, "
            "Tensor(d!) attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor? "
            "encoder_lens, "
            "Tensor? sinks, float sm_scale, float logit_cap=0.0, int sliding_window=0, bool "
            "is_cross_attn=False, int? pad_slot=None) -> ()");

}  // namespace kernelpair
