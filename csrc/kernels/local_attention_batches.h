// What the kernels of local_attention_batches take. Contract: docs/contracts/local_attention_batches.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

// The batch that is cut into chunks.
struct LocalBatch {
  const View& query_start_loc;  // [B + 1]
  const View& seq_lens;         // [B]
  const View& block_table;      // [B, columns]
  int64_t chunk, page_size;     // tokens
};

struct LocalAttentionBatchesCheckArguments {
  LocalBatch batch;
  int64_t* first_bad;  // the first request with a used entry that is no page id, else B
};
KP_KERNEL(local_attention_batches_check, LocalAttentionBatchesCheckArguments);

struct LocalAttentionBatchesArguments {
  LocalBatch batch;
  const View& first_rows;  // [B + 1]: where each request's virtual requests begin
  // Rows past the last virtual request get length 0, flat offsets, pages 0.
  const View &seqlens_q, &seqlens_k;  // [rows] i32
  const View& cu_seqlens_q;           // [rows + 1] i32
  const View& table;                  // [rows, width] i32
};
KP_KERNEL(local_attention_batches, LocalAttentionBatchesArguments);

}  // namespace kernelpair
