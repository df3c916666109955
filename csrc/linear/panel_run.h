// Rows that a kernel packed itself, in the order that a linear layer's products read, times some panels of its weight.
#pragma once

#include "core/view.h"

namespace kernelpair {

struct PanelRun {
  bool tiles;           // how they were packed: as tiles of bf16, or in fp32 for vectors
  const void* packed;   // the rows
  int64_t first, rows;  // where their results go in `out`
  int64_t begin, end;   // panels
};

}  // namespace kernelpair
