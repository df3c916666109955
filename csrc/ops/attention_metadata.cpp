// attention_metadata: checks and registration. Contract: docs/contracts/attention_metadata.md. The Python
// face knows the modes; here a mode is two numbers: what is added to seq_lens, and the query length of every
// request (-1: extend_seq_lens). _plan gives the sizes to allocate, _fill writes; rows past the live requests
// are padding.
#include <algorithm>
#include <vector>

#include "core/operator.h"
#include "kernels/attention_metadata.h"

namespace kernelpair {
namespace {

constexpr int64_t kInt32End = int64_t{1} << 31;

// One vector of lengths, padded to the rows of the outputs.
struct Lengths {
  std::vector<int64_t> values;
  int64_t total = 0, most = 0;

  explicit Lengths(int64_t rows) { values.reserve(rows); }

  void add(const char* name, int64_t b, int64_t length) {
    KP_CHECK_VALUE(length >= 0, name, "[", b, "] = ", length, " is negative");
    total += length;  // each term below 2^31: no overflow of 64 bits
    KP_CHECK_VALUE(length < kInt32End && total < kInt32End, name,
                   ": the total does not fit int32, at request ", b);
    most = std::max(most, length);
    values.push_back(length);
  }
};

View vector_view(std::vector<int64_t>& values) {
  return {values.data(), Dtype::i64, 1, {static_cast<int64_t>(values.size())}, {1}, true};
}

struct Inputs {
  View seq_lens, req_pool_indices, req_to_token, extend_seq_lens, encoder_lens;
  int64_t page_size, extra_k, q_len;
};

struct Batch {
  Lengths q, k, encoder;
  std::vector<int64_t> rows, bases, zeros;  // where each request's tokens stand in req_to_token

  explicit Batch(int64_t size) : q(size), k(size), encoder(size) {}
};

void check_fits(const char* name, int64_t b, int64_t base, int64_t length, int64_t columns) {
  KP_CHECK_INDEX(base + length <= columns, name, "[", b, "]: ", length, " tokens from column ", base,
                 " end beyond the ", columns, " of req_to_token");
}

void check_inputs(const Inputs& in) {
  check_rank({"seq_lens", in.seq_lens}, 1);
  check_rank({"req_to_token", in.req_to_token}, 2);
  const int64_t requests = in.seq_lens.sizes[0];
  for (Arg arg : {Arg{"seq_lens", in.seq_lens}, Arg{"req_pool_indices", in.req_pool_indices},
                  Arg{"extend_seq_lens", in.extend_seq_lens}, Arg{"encoder_lens", in.encoder_lens}})
    if (arg.view.defined) {
      check_index_dtype(arg);
      check_shape(arg, {requests});
    }
  check_index_dtype({"req_to_token", in.req_to_token});
  check_indices_in_range({"req_pool_indices", in.req_pool_indices}, in.req_to_token.sizes[0]);
  KP_CHECK_VALUE(in.page_size >= 1, "page_size must be at least 1, got ", in.page_size);
  KP_CHECK_VALUE(in.extra_k >= 0 && in.extra_k <= kInt32End, "extra_k is out of range: ", in.extra_k);
  KP_CHECK_VALUE(in.q_len >= -1 && in.q_len <= kInt32End, "q_len is out of range: ", in.q_len);
  KP_CHECK_VALUE(in.q_len >= 0 || in.extend_seq_lens.defined, "extend_seq_lens must be given in this mode");
}

// Reads and checks everything but the table's entries, and pads to `size` requests (at least the live ones).
Batch read_batch(const Inputs& in, int64_t size) {
  const int64_t requests = in.seq_lens.sizes[0], columns = in.req_to_token.sizes[1];
  KP_CHECK_VALUE(requests <= size, "seq_lens has ", requests, " live requests, but there is room for ", size);
  Batch batch(size);
  batch.rows.resize(size);
  batch.bases.resize(size);
  batch.zeros.resize(size);
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t length = index_at(in.seq_lens, b);
    KP_CHECK_VALUE(length >= 0 && length < kInt32End, "seq_lens[", b, "] = ", length,
                   " is negative or beyond int32");
    batch.k.add("seq_lens", b, length + in.extra_k);
    if (in.extend_seq_lens.defined) {
      const int64_t extend = index_at(in.extend_seq_lens, b);
      KP_CHECK_VALUE(extend >= 0, "extend_seq_lens[", b, "] = ", extend, " is negative");
      KP_CHECK_VALUE(in.q_len >= 0 || extend <= length, "extend_seq_lens[", b, "] = ", extend,
                     " is more than seq_lens[", b, "] = ", length);
    }
    batch.q.add("extend_seq_lens", b, in.q_len >= 0 ? in.q_len : index_at(in.extend_seq_lens, b));
    batch.rows[b] = index_at(in.req_pool_indices, b);
    if (in.encoder_lens.defined) {
      batch.encoder.add("encoder_lens", b, index_at(in.encoder_lens, b));
      const int64_t encoder = batch.encoder.values.back();
      batch.bases[b] = divide_up(encoder, in.page_size) * in.page_size;
      check_fits("encoder_lens", b, 0, encoder, columns);
    }
    check_fits("seq_lens", b, batch.bases[b], batch.k.values.back(), columns);
  }
  for (int64_t b = requests; b < size; ++b) batch.q.add("query length", b, std::max<int64_t>(in.q_len, 0));
  batch.k.values.resize(size);
  batch.encoder.values.resize(size);
  return batch;
}

// [longest query, longest key, longest encoder length], of live requests.
Tensor summary_of(const Inputs& in, const Batch& batch) {
  Tensor summary = new_tensor({3}, Dtype::i64);
  auto* values = static_cast<int64_t*>(summary.data_ptr());
  values[0] = in.seq_lens.sizes[0] == 0 ? 0 : batch.q.most;
  values[1] = batch.k.most;
  values[2] = batch.encoder.most;
  return summary;
}

Inputs inputs_of(const Tensor& seq_lens, const Tensor& req_pool_indices, const Tensor& req_to_token,
                 const std::optional<Tensor>& extend_seq_lens, const std::optional<Tensor>& encoder_lens,
                 int64_t page_size, int64_t extra_k, int64_t q_len) {
  Inputs in{.seq_lens = view_of("seq_lens", seq_lens),
            .req_pool_indices = view_of("req_pool_indices", req_pool_indices),
            .req_to_token = view_of("req_to_token", req_to_token),
            .extend_seq_lens = view_of("extend_seq_lens", extend_seq_lens),
            .encoder_lens = view_of("encoder_lens", encoder_lens),
            .page_size = page_size,
            .extra_k = extra_k,
            .q_len = q_len};
  check_inputs(in);
  return in;
}

Tensor attention_metadata_plan(const Tensor& seq_lens, const Tensor& req_pool_indices,
                               const Tensor& req_to_token, const std::optional<Tensor>& extend_seq_lens,
                               const std::optional<Tensor>& encoder_lens, int64_t page_size, int64_t extra_k,
                               int64_t q_len) {
  const Inputs in = inputs_of(seq_lens, req_pool_indices, req_to_token, extend_seq_lens, encoder_lens,
                              page_size, extra_k, q_len);
  return summary_of(in, read_batch(in, in.seq_lens.sizes[0]));
}

TableColumns table_columns(const Inputs& in, const View& rows, const View& bases, const View& lengths) {
  return {.req_to_token = in.req_to_token,
          .rows = rows,
          .bases = bases,
          .lengths = lengths,
          .page_size = in.page_size};
}

void check_table(const Inputs& in, Batch& batch, std::vector<int64_t>& bases, std::vector<int64_t>& lengths,
                 int64_t width) {
  int64_t b = 0;
  const View rows = vector_view(batch.rows), base_view = vector_view(bases),
             length_view = vector_view(lengths);
  kernels::attention_metadata_check(
      {.columns = table_columns(in, rows, base_view, length_view), .width = width, .first_bad = &b});
  if (b == static_cast<int64_t>(lengths.size())) return;
  for (int64_t column = bases[b];; column += in.page_size) {
    const int64_t row = batch.rows[b], slot = index_at(in.req_to_token, row, column);
    KP_CHECK_INDEX(slot >= 0 && slot / in.page_size < kInt32End, "req_to_token[", row, ", ", column,
                   "] = ", slot, " is not a token slot");
    KP_CHECK_VALUE(slot % in.page_size == 0, "req_to_token[", row, ", ", column, "] = ", slot,
                   " starts a page, but is not a multiple of page_size ", in.page_size);
  }
}

void check_page_table(Arg table, int64_t size, int64_t needed) {
  check_rank(table, 2);
  check_dtype(table, {Dtype::i32});
  check_dense_last_dim(table);
  check_shape(table, {size, table.view.sizes[1]});
  KP_CHECK_INDEX(needed <= table.view.sizes[1], table.name, " has ", table.view.sizes[1],
                 " columns, needed are ", needed);
}

struct Outputs {
  View cache_seqlens, cu_seqlens_q, cu_seqlens_k, page_table, encoder_lens, encoder_cu_seqlens_k,
      encoder_page_table;
};

void check_outputs(const Inputs& in, const Outputs& out, const Batch& batch) {
  const int64_t size = out.cache_seqlens.sizes[0];
  for (Arg arg : {Arg{"cache_seqlens", out.cache_seqlens}, Arg{"encoder_lens_out", out.encoder_lens}})
    if (arg.view.defined) {
      check_dtype(arg, {Dtype::i32});
      check_shape(arg, {size});
    }
  for (Arg arg : {Arg{"cu_seqlens_q", out.cu_seqlens_q}, Arg{"cu_seqlens_k", out.cu_seqlens_k},
                  Arg{"encoder_cu_seqlens_k", out.encoder_cu_seqlens_k}})
    if (arg.view.defined) {
      check_dtype(arg, {Dtype::i32});
      check_shape(arg, {size + 1});
    }
  check_page_table({"page_table", out.page_table}, size, divide_up(batch.k.most, in.page_size));
  const bool encoder = out.encoder_page_table.defined;
  KP_CHECK_VALUE(encoder == out.encoder_lens.defined && encoder == out.encoder_cu_seqlens_k.defined,
                 "encoder outputs must be given together");
  KP_CHECK_VALUE(encoder || !in.encoder_lens.defined, "encoder_lens given, but there are no encoder buffers");
  if (encoder)
    check_page_table({"encoder_page_table", out.encoder_page_table}, size,
                     divide_up(batch.encoder.most, in.page_size));
  check_disjoint({{"cache_seqlens", out.cache_seqlens},
                  {"cu_seqlens_q", out.cu_seqlens_q},
                  {"cu_seqlens_k", out.cu_seqlens_k},
                  {"page_table", out.page_table},
                  {"encoder_lens_out", out.encoder_lens},
                  {"encoder_cu_seqlens_k", out.encoder_cu_seqlens_k},
                  {"encoder_page_table", out.encoder_page_table}},
                 {{"seq_lens", in.seq_lens},
                  {"req_pool_indices", in.req_pool_indices},
                  {"req_to_token", in.req_to_token},
                  {"extend_seq_lens", in.extend_seq_lens},
                  {"encoder_lens", in.encoder_lens}});
}

Tensor attention_metadata_fill(const Tensor& seq_lens, const Tensor& req_pool_indices,
                               const Tensor& req_to_token, const std::optional<Tensor>& extend_seq_lens,
                               const std::optional<Tensor>& encoder_lens, int64_t page_size, int64_t extra_k,
                               int64_t q_len, const Tensor& cache_seqlens, const Tensor& cu_seqlens_q,
                               const Tensor& cu_seqlens_k, const Tensor& page_table,
                               const std::optional<Tensor>& encoder_lens_out,
                               const std::optional<Tensor>& encoder_cu_seqlens_k,
                               const std::optional<Tensor>& encoder_page_table, int64_t max_context_len,
                               int64_t max_encoder_len) {
  const Inputs in = inputs_of(seq_lens, req_pool_indices, req_to_token, extend_seq_lens, encoder_lens,
                              page_size, extra_k, q_len);
  const Outputs out{.cache_seqlens = view_of("cache_seqlens", cache_seqlens),
                    .cu_seqlens_q = view_of("cu_seqlens_q", cu_seqlens_q),
                    .cu_seqlens_k = view_of("cu_seqlens_k", cu_seqlens_k),
                    .page_table = view_of("page_table", page_table),
                    .encoder_lens = view_of("encoder_lens_out", encoder_lens_out),
                    .encoder_cu_seqlens_k = view_of("encoder_cu_seqlens_k", encoder_cu_seqlens_k),
                    .encoder_page_table = view_of("encoder_page_table", encoder_page_table)};
  check_rank({"cache_seqlens", out.cache_seqlens}, 1);
  Batch batch = read_batch(in, out.cache_seqlens.sizes[0]);
  KP_CHECK_INDEX(batch.k.most <= max_context_len, "seq_lens: ", batch.k.most,
                 " tokens are beyond max_context_len ", max_context_len);
  KP_CHECK_INDEX(batch.encoder.most <= max_encoder_len, "encoder_lens: ", batch.encoder.most,
                 " tokens are beyond max_encoder_len ", max_encoder_len);
  check_outputs(in, out, batch);
  check_table(in, batch, batch.bases, batch.k.values, divide_up(batch.k.most, page_size));
  check_table(in, batch, batch.zeros, batch.encoder.values, divide_up(batch.encoder.most, page_size));

  const View rows = vector_view(batch.rows), bases = vector_view(batch.bases),
             zeros = vector_view(batch.zeros);
  const View q = vector_view(batch.q.values), k = vector_view(batch.k.values),
             encoder = vector_view(batch.encoder.values);
  kernels::attention_metadata_lengths({.lengths = k, .out = out.cache_seqlens, .cu = out.cu_seqlens_k});
  kernels::attention_metadata_lengths({.lengths = q, .out = View{}, .cu = out.cu_seqlens_q});
  kernels::attention_metadata_table(
      {.columns = table_columns(in, rows, bases, k), .page_table = out.page_table});
  if (out.encoder_page_table.defined) {
    kernels::attention_metadata_lengths(
        {.lengths = encoder, .out = out.encoder_lens, .cu = out.encoder_cu_seqlens_k});
    kernels::attention_metadata_table(
        {.columns = table_columns(in, rows, zeros, encoder), .page_table = out.encoder_page_table});
  }
  return summary_of(in, batch);
}

}  // namespace

KP_OPERATOR(attention_metadata_plan,
            "(Tensor seq_lens, Tensor req_pool_indices, Tensor req_to_token, Tensor? extend_seq_lens, "
            "Tensor? encoder_lens, int page_size, int extra_k, int q_len) -> Tensor",
            "seq_lens.new_empty(3, dtype=torch.int64)");
KP_OPERATOR(
    attention_metadata_fill,
    "(Tensor seq_lens, Tensor req_pool_indices, Tensor req_to_token, Tensor? extend_seq_lens, "
    "Tensor? encoder_lens, int page_size, int extra_k, int q_len, Tensor(a!) cache_seqlens, "
    "Tensor(b!) cu_seqlens_q, Tensor(c!) cu_seqlens_k, Tensor(d!) page_table, Tensor(e!)? encoder_lens_out, "
    "Tensor(f!)? encoder_cu_seqlens_k, Tensor(g!)? encoder_page_table, int max_context_len, "
    "int max_encoder_len) -> Tensor",
    "seq_lens.new_empty(3, dtype=torch.int64)");

}  // namespace kernelpair
