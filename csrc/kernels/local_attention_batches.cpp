// local_attention_batches: one virtual request for each chunk that holds new tokens. A request's used table
// columns form one run, for the chunks partition them: it is checked as a whole, then copied chunk by chunk.
#include "kernels/local_attention_batches.h"

#include "attention/page_rows.h"
#include "core/parallel.h"
#include "core/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainEntries = 32 << 10;  // about 4 us of copying, the price of waking a thread

// Requests in a range of at least kGrainEntries table entries.
int64_t grain_of(int64_t requests, int64_t entries) { return kGrainEntries * requests / (entries + 1) + 1; }

struct Request {
  int64_t cached;       // tokens before the new ones
  int64_t total;        // 0 if the request gives nothing
  int64_t first_chunk;  // the one that holds the first new token
};

Request request_at(const LocalBatch& batch, int64_t b) {
  const int64_t q = index_at(batch.query_start_loc, b + 1) - index_at(batch.query_start_loc, b);
  const int64_t k = index_at(batch.seq_lens, b);
  if (q == 0 || k == 0) return {.cached = 0, .total = 0, .first_chunk = 0};
  return {.cached = k - q, .total = k, .first_chunk = (k - q) / batch.chunk};
}

}  // namespace

void local_attention_batches_check(const LocalAttentionBatchesCheckArguments& call) {
  const LocalBatch& batch = call.batch;
  const PageSize page = page_size_of(1);
  const int64_t requests = batch.seq_lens.sizes[0], chunk_pages = batch.chunk / batch.page_size;
  *call.first_bad = requests;
  parallel_for(requests, grain_of(requests, requests * batch.block_table.sizes[1]),
               [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Request request = request_at(batch, b);
      if (request.total == 0) continue;
      const int64_t column = request.first_chunk * chunk_pages;
      const int64_t count = divide_up(request.total, batch.page_size) - column;
      if (!run_is_good(batch.block_table, {.row = b, .column = column, .every = 1, .count = count}, page)) {
        keep_lowest(call.first_bad, b);
        return;
      }
    }
  });
}

void local_attention_batches(const LocalAttentionBatchesArguments& call) {
  const LocalBatch& batch = call.batch;
  const View &seqlens_q = call.seqlens_q, &seqlens_k = call.seqlens_k, &cu_seqlens_q = call.cu_seqlens_q;
  const View &first_rows = call.first_rows, &table = call.table;
  const PageSize page = page_size_of(1);
  const int64_t requests = batch.seq_lens.sizes[0], rows = seqlens_q.sizes[0], width = table.sizes[1];
  const int64_t chunk = batch.chunk, chunk_pages = chunk / batch.page_size;
  int64_t offset = 0;
  *at<int32_t>(cu_seqlens_q, 0) = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const Request request = request_at(batch, b);
    int64_t first = request.first_chunk * chunk;
    for (int64_t row = index_at(first_rows, b); row < index_at(first_rows, b + 1); ++row, first += chunk) {
      const int64_t end = request.total - first > chunk ? first + chunk : request.total;
      const int64_t new_tokens = end - (first > request.cached ? first : request.cached);
      offset += new_tokens;
      *at<int32_t>(seqlens_q, row) = static_cast<int32_t>(new_tokens);
      *at<int32_t>(seqlens_k, row) = static_cast<int32_t>(end - first);
      *at<int32_t>(cu_seqlens_q, row + 1) = static_cast<int32_t>(offset);
    }
  }
  const int64_t used = index_at(first_rows, requests);
  for (int64_t row = used; row < rows; ++row) {
    *at<int32_t>(seqlens_q, row) = *at<int32_t>(seqlens_k, row) = 0;
    *at<int32_t>(cu_seqlens_q, row + 1) = static_cast<int32_t>(offset);
    fill_zero(at<int32_t>(table, row), width);
  }
  parallel_for(requests, grain_of(requests, used * width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      int64_t column = request_at(batch, b).first_chunk * chunk_pages;
      for (int64_t row = index_at(first_rows, b); row < index_at(first_rows, b + 1);
           ++row, column += chunk_pages) {
        const int64_t pages = divide_up(*at<int32_t>(seqlens_k, row), batch.page_size);
        copy_run(batch.block_table, {.row = b, .column = column, .every = 1, .count = pages}, page,
                 at<int32_t>(table, row));
        fill_zero(at<int32_t>(table, row) + pages, width - pages);
      }
    }
  });
}

}  // namespace kernelpair::KP_TIER
