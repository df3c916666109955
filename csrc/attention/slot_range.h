// Which columns of the request table a decode query sees. Shared by the checks and the kernel.
#pragma once

#include "core/view.h"

namespace kernelpair {

// Keys are the slots in columns [column, column + keys) of table row `row`.
struct SlotRange {
  int64_t row;
  int64_t column;
  int64_t keys;
};

struct SlotRequests {
  const View& req_pool_indices;
  const View& seq_lens;
  const View& encoder_lens;  // may be absent in self attention
  const View& loc;           // of new keys; may be absent if there is no pad
  int64_t sliding_window;
  bool is_cross_attn;
  bool has_pad;
  int64_t pad_slot;

  // A pad is a request that is not there: nothing of it is read, its length and row of the table included.
  KP_INLINE bool is_pad(int64_t b) const { return has_pad && index_at(loc, b) == pad_slot; }
  KP_INLINE int64_t offset(int64_t b) const {
    return encoder_lens.defined && !is_cross_attn ? index_at(encoder_lens, b) : 0;
  }
  KP_INLINE int64_t length(int64_t b) const { return index_at(is_cross_attn ? encoder_lens : seq_lens, b); }

  // The window counts from the end of the sequence and moves the start within the decoder's part.
  KP_INLINE SlotRange range(int64_t b) const {
    if (is_pad(b)) return {0, 0, 0};
    const int64_t keys = length(b);
    const bool cut = !is_cross_attn && sliding_window > 0 && sliding_window < keys;
    const int64_t hidden = cut ? keys - sliding_window : 0;
    return {index_at(req_pool_indices, b), offset(b) + hidden, keys - hidden};
  }
};

}  // namespace kernelpair
