// local_attention_batches: checks and registration. Contract: docs/contracts/local_attention_batches.md. Two
// operators, because the number of virtual requests depends on the data: _plan counts them, _fill writes them
// into tensors of at least that many rows (more in the static metadata, where the rest is padding).
#include <algorithm>
#include <vector>

#include "core/operator.h"
#include "kernels/local_attention_batches.h"

namespace kernelpair {
namespace {

constexpr int64_t kInt32End = int64_t{1} << 31;

// What the lengths alone say.
struct Plan {
  std::vector<int64_t> first_rows = {0};  // [B + 1]
  int64_t max_q = 0, max_k = 0;           // of the virtual requests
};

Plan plan_of(int64_t chunk, const View& query_start_loc, const View& seq_lens, const View& block_table,
             int64_t page_size) {
  KP_CHECK_VALUE(chunk >= 1, "attn_chunk_size must be at least 1, got ", chunk);
  KP_CHECK_VALUE(page_size >= 1, "page_size must be at least 1, got ", page_size);
  KP_CHECK_VALUE(chunk % page_size == 0, "attn_chunk_size ", chunk, " must be a multiple of page_size ",
                 page_size);
  check_rank({"block_table", block_table}, 2);
  const int64_t requests = block_table.sizes[0], columns = block_table.sizes[1];
  check_shape({"seq_lens", seq_lens}, {requests});
  check_shape({"query_start_loc", query_start_loc}, {requests + 1});
  for (Arg arg :
       {Arg{"block_table", block_table}, Arg{"seq_lens", seq_lens}, Arg{"query_start_loc", query_start_loc}})
    check_index_dtype(arg);

  Plan plan;
  plan.first_rows.reserve(requests + 1);
  int64_t total = 0, before = index_at(query_start_loc, 0);
  KP_CHECK_VALUE(before >= 0, "query_start_loc[0] = ", before, " is negative");
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t after = index_at(query_start_loc, b + 1), k = index_at(seq_lens, b), q = after - before;
    KP_CHECK_VALUE(after >= before && k >= 0 && (q <= k || k == 0), "query_start_loc, seq_lens: request ", b,
                   " has ", q, " new tokens of ", k);
    KP_CHECK_INDEX(k == 0 || (k - 1) / page_size < columns, "seq_lens[", b, "] = ", k, " is beyond ", columns,
                   " pages of ", page_size, " in block_table");
    before = after;
    int64_t rows = 0;
    if (q > 0 && k > 0) {
      const int64_t first = (k - q) / chunk, last = (k - 1) / chunk;
      // Of the first chunk; inner ones are whole.
      const int64_t first_end = last > first ? (first + 1) * chunk : k;
      const int64_t last_q = k - (last * chunk > k - q ? last * chunk : k - q);
      const int64_t q_most = last > first + 1 ? chunk : std::max(first_end - (k - q), last_q);
      const int64_t k_most = last > first ? chunk : k - last * chunk;
      KP_CHECK_VALUE(k_most < kInt32End, "seq_lens[", b, "] = ", k, " gives a chunk that does not fit int32");
      plan.max_q = std::max(plan.max_q, q_most);
      plan.max_k = std::max(plan.max_k, k_most);
      total += q;
      rows = last - first + 1;
    }
    plan.first_rows.push_back(plan.first_rows.back() + rows);
  }
  KP_CHECK_VALUE(total < kInt32End, "query_start_loc: the total of new tokens does not fit int32");
  return plan;
}

Tensor summary_of(const Plan& plan) {
  Tensor summary = new_tensor({3}, Dtype::i64);
  auto* values = static_cast<int64_t*>(summary.data_ptr());
  values[0] = plan.first_rows.back();
  values[1] = plan.max_q;
  values[2] = plan.max_k;
  return summary;
}

Tensor local_attention_batches_plan(int64_t attn_chunk_size, const Tensor& query_start_loc,
                                    const Tensor& seq_lens, const Tensor& block_table, int64_t page_size) {
  return summary_of(plan_of(attn_chunk_size, view_of("query_start_loc", query_start_loc),
                            view_of("seq_lens", seq_lens), view_of("block_table", block_table), page_size));
}

// A used page id that does not fit int32 or is negative: only now is it worth looking for.
[[noreturn]] void fail_page_id(const View& starts, const View& seq_lens, const View& table, int64_t b,
                               int64_t chunk, int64_t page_size) {
  const int64_t k = index_at(seq_lens, b), q = index_at(starts, b + 1) - index_at(starts, b);
  for (int64_t column = (k - q) / chunk * (chunk / page_size);; ++column) {
    const int64_t page = index_at(table, b, column);
    KP_CHECK_INDEX(page >= 0 && page < kInt32End, "block_table[", b, ", ", column, "] = ", page,
                   " is not a page id");
  }
}

Tensor local_attention_batches_fill(int64_t attn_chunk_size, const Tensor& query_start_loc_in,
                                    const Tensor& seq_lens_in, const Tensor& block_table_in,
                                    int64_t page_size, const Tensor& seqlens_q_in,
                                    const Tensor& cu_seqlens_q_in, const Tensor& seqlens_k_in,
                                    const Tensor& table_in) {
  const View starts = view_of("query_start_loc", query_start_loc_in),
             seq_lens = view_of("seq_lens", seq_lens_in);
  const View block_table = view_of("block_table", block_table_in),
             table = view_of("block_table_local", table_in);
  const View seqlens_q = view_of("seqlens_q_local", seqlens_q_in),
             seqlens_k = view_of("seqlens_k_local", seqlens_k_in);
  const View cu = view_of("cu_seqlens_q_local", cu_seqlens_q_in);
  Plan plan = plan_of(attn_chunk_size, starts, seq_lens, block_table, page_size);
  check_rank({"block_table_local", table}, 2);
  const int64_t rows = table.sizes[0], width = table.sizes[1];
  KP_CHECK_VALUE(rows >= plan.first_rows.back(), "block_table_local has ", rows, " rows, needed are ",
                 plan.first_rows.back());
  const int64_t needed = std::min(attn_chunk_size / page_size, block_table.sizes[1]);
  KP_CHECK_VALUE(width >= needed, "block_table_local has ", width, " columns, needed are ", needed);
  check_shape({"seqlens_q_local", seqlens_q}, {rows});
  check_shape({"seqlens_k_local", seqlens_k}, {rows});
  check_shape({"cu_seqlens_q_local", cu}, {rows + 1});
  for (Arg out : {Arg{"seqlens_q_local", seqlens_q}, Arg{"cu_seqlens_q_local", cu},
                  Arg{"seqlens_k_local", seqlens_k}, Arg{"block_table_local", table}})
    check_dtype(out, {Dtype::i32});
  check_dense_last_dim({"block_table_local", table});
  check_disjoint({{"seqlens_q_local", seqlens_q},
                  {"cu_seqlens_q_local", cu},
                  {"seqlens_k_local", seqlens_k},
                  {"block_table_local", table}},
                 {{"query_start_loc", starts}, {"seq_lens", seq_lens}, {"block_table", block_table}});

  int64_t first_bad = 0;
  const LocalBatch batch{.query_start_loc = starts,
                         .seq_lens = seq_lens,
                         .block_table = block_table,
                         .chunk = attn_chunk_size,
                         .page_size = page_size};
  kernels::local_attention_batches_check({.batch = batch, .first_bad = &first_bad});
  if (first_bad < seq_lens.sizes[0])
    fail_page_id(starts, seq_lens, block_table, first_bad, attn_chunk_size, page_size);
  const View first_rows{plan.first_rows.data(), Dtype::i64, 1, {seq_lens.sizes[0] + 1}, {1}, true};
  kernels::local_attention_batches({.batch = batch,
                                    .first_rows = first_rows,
                                    .seqlens_q = seqlens_q,
                                    .seqlens_k = seqlens_k,
                                    .cu_seqlens_q = cu,
                                    .table = table});
  return summary_of(plan);
}

}  // namespace

// Both return [virtual requests, longest q, longest k].
KP_OPERATOR(local_attention_batches_plan,
            "(int attn_chunk_size, Tensor query_start_loc, Tensor seq_lens, Tensor block_table, int "
            "page_size) -> Tensor",
            "seq_lens.new_empty(3, dtype=torch.int64)");
KP_OPERATOR(
    local_attention_batches_fill,
    "(int attn_chunk_size, Tensor query_start_loc, Tensor seq_lens, Tensor block_table, int page_size, "
    "Tensor(a!) seqlens_q_local, Tensor(b!) cu_seqlens_q_local, Tensor(c!) seqlens_k_local, "
    "Tensor(d!) block_table_local) -> Tensor",
    "seq_lens.new_empty(3, dtype=torch.int64)");

}  // namespace kernelpair
