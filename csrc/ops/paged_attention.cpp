// paged_attention: checks and registration. Contract: docs/contracts/paged_attention.md.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention/checks.h"
#include "core/operator.h"
#include "kernels/paged_attention.h"

namespace kernelpair {
namespace {

bool is_float8(Dtype dtype) { return dtype == Dtype::f8e4m3 || dtype == Dtype::f8e5m2; }

void check_descale(Arg descale, int64_t batch, int64_t kv_heads) {
  if (!descale.view.defined) return;
  check_dtype(descale, {Dtype::f32});
  check_shape(descale, {batch, kv_heads});
}

// Of requests with rows and keys: the largest score is looked for before it is scaled.
void check_scales_of_scores(Arg descale, const View& lengths, const View& offsets) {
  if (!descale.view.defined) return;
  for (int64_t b = 0; b < descale.view.sizes[0]; ++b) {
    if (index_at(lengths, b) == 0 || index_at(offsets, b + 1) == index_at(offsets, b)) continue;
    for (int64_t h = 0; h < descale.view.sizes[1]; ++h) {
      const float factor = *at<float>(descale.view, b, h);
      KP_CHECK_VALUE(factor > 0 && std::isfinite(factor), descale.name, "[", b, ", ", h, "] = ", factor,
                     " must be finite and > 0");
    }
  }
}

// The slopes as dense floats, which must be finite; none if there are none.
std::vector<float> slopes_of(Arg slopes, int64_t heads) {
  std::vector<float> found;
  if (!slopes.view.defined) return found;
  check_dtype(slopes, {Dtype::f32});
  check_shape(slopes, {heads});
  for (int64_t h = 0; h < heads; ++h) {
    found.push_back(*at<float>(slopes.view, h));
    KP_CHECK_VALUE(std::isfinite(found.back()), slopes.name, "[", h, "] = ", found.back(), " must be finite");
  }
  return found;
}

// What the request's rows see of its sk keys, [first, last), and that every page of them exists.
void check_pages(const View& table, int64_t b, int64_t rows, int64_t keys, int64_t page, int64_t pages,
                 int64_t left) {
  const int64_t columns = keys / page + (keys % page != 0);
  KP_CHECK_INDEX(columns <= table.sizes[1], "cache_seqlens[", b, "] = ", keys, " needs ", columns,
                 " pages of ", page, ", page_table has room for ", table.sizes[1]);
  const int64_t position = keys - rows, first = left >= 0 && left < position ? position - left : 0;
  if (rows == 0 || first >= keys) return;
  check_table_entries({"page_table", table}, b, first / page, columns - first / page, pages, b);
}

// Rows, keys and pages of every request.
void check_requests(const View& table, const View& lengths, const View& offsets, int64_t tokens, int64_t page,
                    int64_t pages, int64_t left) {
  const int64_t batch = table.sizes[0];
  for (int64_t b = 0; b <= batch; ++b) {
    const int64_t offset = index_at(offsets, b);
    KP_CHECK_VALUE(offset >= (b ? index_at(offsets, b - 1) : 0), "cu_seqlens_q[", b, "] = ", offset,
                   " is less than the one before");
    KP_CHECK_VALUE(offset <= tokens, "cu_seqlens_q[", b, "] = ", offset, " passes the ", tokens,
                   " rows of q");
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t keys = index_at(lengths, b), rows = index_at(offsets, b + 1) - index_at(offsets, b);
    KP_CHECK_VALUE(keys >= 0, "cache_seqlens[", b, "] = ", keys, " is negative");
    check_pages(table, b, rows, keys, page, pages, left);
  }
}

void zero_rows(const View& out, int64_t first, int64_t last) {
  const int64_t bytes = (last - first) * out.sizes[1] * out.sizes[2] * element_size(out.dtype);
  if (bytes > 0) std::memset(at(out, first), 0, bytes);
}

Tensor paged_attention(const Tensor& q_in, const Tensor& k_cache_in, const Tensor& v_cache_in,
                       const Tensor& page_table_in, const Tensor& cache_seqlens_in,
                       const Tensor& cu_seqlens_q_in, const std::optional<Tensor>& qv_in,
                       const std::optional<Tensor>& k_descale_in, const std::optional<Tensor>& v_descale_in,
                       const std::optional<Tensor>& sinks_in, std::optional<double> softmax_scale,
                       bool causal, int64_t window_left, int64_t window_right, double softcap,
                       int64_t num_splits, const std::optional<Tensor>& alibi_slopes_in) {
  const View q = view_of("q", q_in), k_cache = view_of("k_cache", k_cache_in),
             v_cache = view_of("v_cache", v_cache_in);
  const View table = view_of("page_table", page_table_in),
             lengths = view_of("cache_seqlens", cache_seqlens_in);
  const View offsets = view_of("cu_seqlens_q", cu_seqlens_q_in), qv = view_of("qv", qv_in),
             sinks = view_of("sinks", sinks_in);
  const View k_descale = view_of("k_descale", k_descale_in), v_descale = view_of("v_descale", v_descale_in);

  check_dense(3, {{"q", q}});
  check_dense(4, {{"k_cache", k_cache}, {"v_cache", v_cache}});
  check_dense(3, {{"qv", qv}});
  check_float({"q", q});
  check_dtype({"k_cache", k_cache}, {q.dtype, Dtype::f8e4m3, Dtype::f8e5m2});
  check_same_dtype({"k_cache", k_cache}, {{"v_cache", v_cache}});
  check_same_dtype({"q", q}, {{"qv", qv}});
  const int64_t tokens = q.sizes[0], heads = q.sizes[1], D = q.sizes[2];
  const int64_t pages = k_cache.sizes[0], page = k_cache.sizes[1], kv_heads = k_cache.sizes[2],
                Dv = v_cache.sizes[3];
  check_shape({"k_cache", k_cache}, {pages, page, kv_heads, D});
  check_shape({"v_cache", v_cache}, {pages, page, kv_heads, Dv});
  KP_CHECK_VALUE(page >= 1, "k_cache has pages of ", page, " slots");
  if (qv.defined) {
    check_shape({"qv", qv}, {tokens, heads, Dv});
    KP_CHECK_VALUE(!is_float8(k_cache.dtype) && !k_descale.defined && !v_descale.defined,
                   "qv cannot be combined with a float8 cache or with descales");
  }
  check_rank({"page_table", table}, 2);
  check_index_dtype({"page_table", table});
  const int64_t batch = table.sizes[0];
  check_index_dtype({"cache_seqlens", lengths});
  check_shape({"cache_seqlens", lengths}, {batch});
  check_index_dtype({"cu_seqlens_q", offsets});
  check_shape({"cu_seqlens_q", offsets}, {batch + 1});
  check_descale({"k_descale", k_descale}, batch, kv_heads);
  check_descale({"v_descale", v_descale}, batch, kv_heads);
  const double width = static_cast<double>(std::max<int64_t>(1, D + (qv.defined ? Dv : 0)));
  const double scale = softmax_scale.value_or(1 / std::sqrt(width));
  const std::vector<float> slopes =
      slopes_of({"alibi_slopes", view_of("alibi_slopes", alibi_slopes_in)}, heads);
  check_attention({heads, kv_heads, D, Dv, q.dtype}, scale, softcap, sinks, "softmax_scale", "softcap");
  KP_CHECK_VALUE(window_left >= -1, "window_left must be at least -1, got ", window_left);
  KP_CHECK_VALUE(window_right >= -1, "window_right must be at least -1, got ", window_right);
  KP_CHECK_VALUE(num_splits >= 0, "num_splits must not be negative, got ", num_splits);

  check_requests(table, lengths, offsets, tokens, page, pages, window_left);
  check_scales_of_scores({"k_descale", k_descale}, lengths, offsets);

  Tensor result = new_tensor({tokens, heads, Dv}, q.dtype);
  const View out = view_of("out", result);
  zero_rows(out, 0, index_at(offsets, 0));
  zero_rows(out, index_at(offsets, batch), tokens);
  kernels::paged_attention({.q = q,
                            .k_cache = k_cache,
                            .v_cache = v_cache,
                            .page_table = table,
                            .cache_seqlens = lengths,
                            .cu_seqlens_q = offsets,
                            .qv = qv,
                            .k_descale = k_descale,
                            .v_descale = v_descale,
                            .sinks = sinks,
                            .alibi_slopes = slopes.empty() ? nullptr : slopes.data(),
                            .out = out,
                            .softmax_scale = static_cast<float>(scale),
                            .softcap = static_cast<float>(softcap),
                            .window_left = window_left,
                            .window_right = causal ? 0 : window_right,
                            .num_splits = num_splits});
  return result;
}

}  // namespace

KP_OPERATOR(paged_attention,
            "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor cache_seqlens, Tensor "
            "cu_seqlens_q, "
            "Tensor? qv=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? sinks=None, float? "
            "softmax_scale=None, "
            "bool causal=False, int window_left=-1, int window_right=-1, float softcap=0.0, int "
            "num_splits=0, Tensor? alibi_slopes=None) -> Tensor",
            "q.new_empty((*q.shape[:2], v_cache.shape[3]))");

}  // namespace kernelpair
