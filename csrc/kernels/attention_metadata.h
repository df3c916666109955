// What the kernels of attention_metadata take. Indices and lengths are int32 or int64.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct AttentionMetadataLengthsArguments {
  const View& lengths;  // [N]
  const View& out;      // [N] i32, may be absent
  const View& cu;       // [N + 1] i32: the leading 0 and the running sum
};
KP_KERNEL(attention_metadata_lengths, AttentionMetadataLengthsArguments);

// Where each request's tokens stand in the request table: row rows[b], columns [bases[b], bases[b] +
// lengths[b]).
struct TableColumns {
  const View& req_to_token;            // [requests, columns]
  const View &rows, &bases, &lengths;  // [N]
  int64_t page_size;
};

struct AttentionMetadataCheckArguments {
  TableColumns columns;
  int64_t width;       // an upper bound of a row's pages
  int64_t* first_bad;  // the first request with a used page start that is no page start, else N
};
KP_KERNEL(attention_metadata_check, AttentionMetadataCheckArguments);

struct AttentionMetadataTableArguments {
  TableColumns columns;
  const View& page_table;  // [N, width] i32
};
KP_KERNEL(attention_metadata_table, AttentionMetadataTableArguments);

}  // namespace kernelpair
