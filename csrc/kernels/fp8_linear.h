// What the kernel of fp8_linear takes. Contract: docs/contracts/fp8_linear.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"
#include "linear/panel_run.h"

namespace kernelpair {

struct Fp8LinearArguments {
  const View& x;       // [..., K]
  const View& data;    // as pack_fp8_weight leaves it
  const View& scales;  // [ceil(N / block_n), ceil(K / block_k)] f32
  int64_t block_n, block_k;
  const View& bias;  // [N], may be absent
  const View& out;   // [rows of x, N], contiguous
};
KP_KERNEL(fp8_linear, Fp8LinearArguments);

// The products alone, for experts: x is absent, `out` f32.
struct Fp8LinearPanelsArguments {
  const Fp8LinearArguments& layer;
  const PanelRun& run;
};
KP_KERNEL(fp8_linear_panels, Fp8LinearPanelsArguments);

}  // namespace kernelpair
