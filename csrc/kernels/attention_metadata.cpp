// attention_metadata: lengths, offsets and page tables of a batch. The tables are all of the work: a gather
// of every page_size-th entry of a request's row. It is checked in a first pass and copied in a second, from
// cache, because nothing may be written before everything is known to be good.
#include "kernels/attention_metadata.h"

#include "attention/page_rows.h"
#include "core/parallel.h"
#include "core/view.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainEntries = 32 << 10;  // about 4 us of copying, the price of waking a thread

int64_t grain_of(int64_t width) { return kGrainEntries / (width + 1) + 1; }

TableRun run_of(const TableColumns& columns, int64_t b) {
  return {.row = index_at(columns.rows, b),
          .column = index_at(columns.bases, b),
          .every = columns.page_size,
          .count = divide_up(index_at(columns.lengths, b), columns.page_size)};
}

}  // namespace

void attention_metadata_lengths(const AttentionMetadataLengthsArguments& call) {
  int64_t sum = 0;
  *at<int32_t>(call.cu, 0) = 0;
  for (int64_t b = 0; b < call.lengths.sizes[0]; ++b) {
    const int64_t length = index_at(call.lengths, b);
    sum += length;
    if (call.out.defined) *at<int32_t>(call.out, b) = static_cast<int32_t>(length);
    *at<int32_t>(call.cu, b + 1) = static_cast<int32_t>(sum);
  }
}

void attention_metadata_check(const AttentionMetadataCheckArguments& call) {
  const TableColumns& columns = call.columns;
  const PageSize page = page_size_of(columns.page_size);
  const int64_t requests = columns.lengths.sizes[0];
  *call.first_bad = requests;
  parallel_for(requests, grain_of(call.width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      if (!run_is_good(columns.req_to_token, run_of(columns, b), page)) {
        keep_lowest(call.first_bad, b);
        return;
      }
  });
}

// page_table[b, j] = req_to_token[rows[b], bases[b] + j * page_size] / page_size, 0 from ceil(lengths[b] /
// page_size) on.
void attention_metadata_table(const AttentionMetadataTableArguments& call) {
  const TableColumns& columns = call.columns;
  const PageSize page = page_size_of(columns.page_size);
  const int64_t width = call.page_table.sizes[1];
  parallel_for(columns.lengths.sizes[0], grain_of(width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const TableRun run = run_of(columns, b);
      int32_t* pages = at<int32_t>(call.page_table, b);
      copy_run(columns.req_to_token, run, page, pages);
      fill_zero(pages + run.count, width - run.count);
    }
  });
}

}  // namespace kernelpair::KP_TIER
