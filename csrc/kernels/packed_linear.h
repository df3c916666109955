// What the kernel of packed_linear takes. Contract: docs/contracts/packed_linear.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"
#include "linear/panel_run.h"

namespace kernelpair {

struct PackedLinearArguments {
  const View& x;              // [..., K]
  const View& packed_weight;  // as pack_linear_weight leaves it
  const View& bias;           // [N], may be absent
  const View& out;            // [rows of x, N], contiguous
};
KP_KERNEL(packed_linear, PackedLinearArguments);

// The products alone, for experts: x is absent, `out` f32.
struct PackedLinearPanelsArguments {
  const PackedLinearArguments& layer;
  const PanelRun& run;
};
KP_KERNEL(packed_linear_panels, PackedLinearPanelsArguments);

}  // namespace kernelpair
