// flash_attn_varlen: checks and registration. Contract: docs/contracts/flash_attn_varlen.md.
#include "kernels/flash_attn_varlen.h"

#include <cmath>
#include <cstring>

#include "attention/checks.h"
#include "core/operator.h"

namespace kernelpair {
namespace {

void check_lengths(Arg offsets, int64_t tokens) {
  check_rank(offsets, 1);
  check_index_dtype(offsets);
  check_offsets(offsets, tokens);
}

void clear_rows(const View& out, int64_t first, int64_t last) {
  const int64_t bytes = (last - first) * out.sizes[1] * out.sizes[2] * element_size(out.dtype);
  if (bytes > 0) std::memset(at(out, first), 0, bytes);
}

Tensor flash_attn_varlen(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                         const Tensor& cu_seqlens_q_in, const Tensor& cu_seqlens_k_in,
                         const std::optional<Tensor>& sinks_in, std::optional<double> softmax_scale,
                         bool causal, const std::optional<Tensor>& causal_requests_in, std::string alignment,
                         int64_t window_left, int64_t window_right, double softcap) {
  const View q = view_of("q", q_in), k = view_of("k", k_in), v = view_of("v", v_in);
  const View rows = view_of("cu_seqlens_q", cu_seqlens_q_in), keys = view_of("cu_seqlens_k", cu_seqlens_k_in);
  const View sinks = view_of("sinks", sinks_in), flags = view_of("causal_requests", causal_requests_in);
  check_dense(3, {{"q", q}, {"k", k}, {"v", v}});
  check_float({"q", q});
  check_same_dtype({"q", q}, {{"k", k}, {"v", v}});
  const int64_t H = q.sizes[1], D = q.sizes[2], Hkv = k.sizes[1], Dv = v.sizes[2];
  check_shape({"k", k}, {k.sizes[0], Hkv, D});
  check_shape({"v", v}, {k.sizes[0], Hkv, Dv});
  check_lengths({"cu_seqlens_q", rows}, q.sizes[0]);
  check_lengths({"cu_seqlens_k", keys}, k.sizes[0]);
  const int64_t batch = rows.sizes[0] - 1;
  check_shape({"cu_seqlens_k", keys}, {batch + 1});
  if (flags.defined) {
    check_dtype({"causal_requests", flags}, {Dtype::b8});
    check_shape({"causal_requests", flags}, {batch});
    KP_CHECK_VALUE(!causal, "causal_requests says of each request what causal = True says of all: give one");
  }
  KP_CHECK_VALUE(alignment == "bottom_right" || alignment == "top_left",
                 "alignment must be one of bottom_right, top_left, got '", alignment, "'");
  const double scale = softmax_scale.value_or(D ? 1 / std::sqrt(static_cast<double>(D)) : 1);
  check_attention({H, Hkv, D, Dv, q.dtype}, scale, softcap, sinks, "softmax_scale", "softcap");
  KP_CHECK_VALUE(window_left >= -1, "window_left must be at least -1, got ", window_left);
  KP_CHECK_VALUE(window_right >= -1, "window_right must be at least -1, got ", window_right);

  Tensor result = new_tensor({q.sizes[0], H, Dv}, q.dtype);
  const View out = view_of("out", result);
  clear_rows(out, 0, index_at(rows, 0));
  clear_rows(out, index_at(rows, batch), q.sizes[0]);
  kernels::flash_attn_varlen({.q = q,
                              .k = k,
                              .v = v,
                              .cu_seqlens_q = rows,
                              .cu_seqlens_k = keys,
                              .sinks = sinks,
                              .causal_requests = flags,
                              .out = out,
                              .softmax_scale = static_cast<float>(scale),
                              .softcap = static_cast<float>(softcap),
                              .causal = causal,
                              .bottom_right = alignment == "bottom_right",
                              .window_left = window_left,
                              .window_right = window_right});
  return result;
}

}  // namespace

KP_OPERATOR(flash_attn_varlen,
            "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? sinks=None, "
            "float? softmax_scale=None, bool causal=False, Tensor? causal_requests=None, "
            "str alignment=\"bottom_right\", int window_left=-1, int window_right=-1, float softcap=0.0) -> "
            "Tensor",
            "q.new_empty((*q.shape[:2], v.shape[2]))");

}  // namespace kernelpair
