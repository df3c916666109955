// local_attention_batches: one virtual request for each chunk that holds new tokens. A request's used table columns form one
// run, for the chunks partition them: it is checked as a whole, then copied chunk by chunk.
#include "common/page_rows.h"
#include "common/parallel.h"
#include "common/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainEntries = 32 << 10;  // about 4 us of copying, the price of waking a thread

int64_t pages_of(int64_t tokens, int64_t page_size) { return tokens == 0 ? 0 : (tokens - 1) / page_size + 1; }

// Requests in a range of at least kGrainEntries table entries.
int64_t grain_of(int64_t requests, int64_t entries) { return kGrainEntries * requests / (entries + 1) + 1; }

struct Request {
  int64_t cached;       // tokens before the new ones
  int64_t total;        // 0 if the request gives nothing
  int64_t first_chunk;  // the one that holds the first new token
};

Request request_at(const View& query_start_loc, const View& seq_lens, int64_t b, int64_t chunk) {
  const int64_t q = index_at(query_start_loc, b + 1) - index_at(query_start_loc, b), k = index_at(seq_lens, b);
  if (q == 0 || k == 0) return {0, 0, 0};
  return {k - q, k, (k - q) / chunk};
}

}  // namespace

// The first request (or B, in *first_bad) with a used entry that is no page id.
void local_attention_batches_check(int64_t chunk, const View& query_start_loc, const View& seq_lens,
                                   const View& block_table, int64_t page_size, int64_t* first_bad) {
  const PageSize page = page_size_of(1);
  const int64_t requests = seq_lens.sizes[0], chunk_pages = chunk / page_size;
  *first_bad = requests;
  parallel_for(requests, grain_of(requests, requests * block_table.sizes[1]), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Request request = request_at(query_start_loc, seq_lens, b, chunk);
      if (request.total == 0) continue;
      const int64_t column = request.first_chunk * chunk_pages;
      if (!run_is_good(block_table, {b, column, 1, pages_of(request.total, page_size) - column}, page)) {
        keep_lowest(first_bad, b);
        return;
      }
    }
  });
}

// first_rows [B + 1]: where each request's virtual requests begin. Rows past the last one get length 0, flat offsets, pages 0.
void local_attention_batches(int64_t chunk, const View& query_start_loc, const View& seq_lens, const View& block_table,
                             int64_t page_size, const View& first_rows, const View& seqlens_q, const View& cu_seqlens_q,
                             const View& seqlens_k, const View& table) {
  const PageSize page = page_size_of(1);
  const int64_t requests = seq_lens.sizes[0], rows = seqlens_q.sizes[0], width = table.sizes[1];
  const int64_t chunk_pages = chunk / page_size;
  int64_t offset = 0;
  *at<int32_t>(cu_seqlens_q, 0) = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const Request request = request_at(query_start_loc, seq_lens, b, chunk);
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
      int64_t column = request_at(query_start_loc, seq_lens, b, chunk).first_chunk * chunk_pages;
      for (int64_t row = index_at(first_rows, b); row < index_at(first_rows, b + 1); ++row, column += chunk_pages) {
        const int64_t pages = pages_of(*at<int32_t>(seqlens_k, row), page_size);
        copy_run(block_table, {b, column, 1, pages}, page, at<int32_t>(table, row));
        fill_zero(at<int32_t>(table, row) + pages, width - pages);
      }
    }
  });
}

}  // namespace kernelpair::KP_TIER
