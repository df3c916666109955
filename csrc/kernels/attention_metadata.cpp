// attention_metadata: lengths, offsets and page tables of a batch. The tables are all of the work: a gather of every
// page_size-th entry of a request's row. It is checked in a first pass and copied in a second, from cache, because
// nothing may be written before everything is known to be good.
#include "common/page_rows.h"
#include "common/parallel.h"
#include "common/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainEntries = 32 << 10;  // about 4 us of copying, the price of waking a thread

int64_t grain_of(int64_t width) { return kGrainEntries / (width + 1) + 1; }

TableRun run_of(const View& rows, const View& bases, const View& lengths, int64_t b, int64_t page_size) {
  const int64_t length = index_at(lengths, b);
  return {index_at(rows, b), index_at(bases, b), page_size, length == 0 ? 0 : (length - 1) / page_size + 1};
}

}  // namespace

// lengths [N] -> out [N] (if given) and cu [N + 1], the leading 0 and the running sum.
void attention_metadata_lengths(const View& lengths, const View& out, const View& cu) {
  int64_t sum = 0;
  *at<int32_t>(cu, 0) = 0;
  for (int64_t b = 0; b < lengths.sizes[0]; ++b) {
    const int64_t length = index_at(lengths, b);
    sum += length;
    if (out.defined) *at<int32_t>(out, b) = static_cast<int32_t>(length);
    *at<int32_t>(cu, b + 1) = static_cast<int32_t>(sum);
  }
}

// The first request (or N, in *first_bad) with a used page start that is no page start. width: an upper bound of a row's pages.
void attention_metadata_check(const View& req_to_token, const View& rows, const View& bases, const View& lengths,
                              int64_t page_size, int64_t width, int64_t* first_bad) {
  const PageSize page = page_size_of(page_size);
  const int64_t requests = lengths.sizes[0];
  *first_bad = requests;
  parallel_for(requests, grain_of(width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      if (!run_is_good(req_to_token, run_of(rows, bases, lengths, b, page_size), page)) {
        keep_lowest(first_bad, b);
        return;
      }
  });
}

// page_table[b, j] = req_to_token[rows[b], bases[b] + j * page_size] / page_size, 0 from ceil(lengths[b] / page_size) on.
void attention_metadata_table(const View& req_to_token, const View& rows, const View& bases, const View& lengths,
                              int64_t page_size, const View& page_table) {
  const PageSize page = page_size_of(page_size);
  const int64_t width = page_table.sizes[1];
  parallel_for(lengths.sizes[0], grain_of(width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const TableRun run = run_of(rows, bases, lengths, b, page_size);
      int32_t* pages = at<int32_t>(page_table, b);
      copy_run(req_to_token, run, page, pages);
      fill_zero(pages + run.count, width - run.count);
    }
  });
}

}  // namespace kernelpair::KP_TIER
