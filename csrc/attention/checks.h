// Argument checks that the attention operators share.
#pragma once

#include "core/checks.h"

namespace kernelpair {

struct AttentionSizes {
  int64_t heads, kv_heads;
  int64_t D, Dv;
  Dtype dtype;
};

// Scale, cap, head ratio, widths and sinks; the names are those of the operator's scale and cap.
void check_attention(const AttentionSizes& sizes, double sm_scale, double logit_cap, const View& sinks,
                     const char* scale_name = "sm_scale", const char* cap_name = "logit_cap");

// Entries [first, first + count) of one row of a table: 0 <= entry < limit. IndexError names table, batch row
// and value.
void check_table_entries(Arg table, int64_t row, int64_t first, int64_t count, int64_t limit,
                         int64_t batch_row);

}  // namespace kernelpair
