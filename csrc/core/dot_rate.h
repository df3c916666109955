// How fast VDPBF16PS is on this CPU.
#pragma once

namespace kernelpair {

// The time of an FMA of 16 products over that of a VDPBF16PS of 32, per product: about 2 on AMD's CPUs, 0.5 on
// Intel's. Measured at the first call, in less than a millisecond; 0 where the build or the caller's CPU knows
// neither. Only for a CPU that has AVX512_BF16.
double dot_rate();

}  // namespace kernelpair
