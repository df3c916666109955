#include "common/parallel.h"

#include <torch/csrc/stable/ops.h>

namespace kernelpair {

int thread_count() { return static_cast<int>(torch::stable::get_num_threads()); }

void run_parallel(int64_t n, int64_t grain, LoopBody body, void* context) {
  if (n <= 0) return;
  if (n <= grain) return body(0, n, context);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, n, grain, body, context));
}

}  // namespace kernelpair
