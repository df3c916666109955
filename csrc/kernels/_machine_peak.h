// What the kernels of _machine_peak take.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

struct MachinePeakProductsArguments {
  const View& operands;  // 4 KiB of bf16 numbers, or of int8
  const View& done;      // [threads] i64: the multiply-adds of each thread, `rounds` times its inner loop
  int64_t rounds;
};
KP_KERNEL(_machine_peak_products, MachinePeakProductsArguments);

struct MachinePeakReadArguments {
  const View& buffer;  // [n] f32, of which each thread reads its part `rounds` times
  const View& read;    // [threads] i64: the bytes of each thread
  int64_t rounds;
};
KP_KERNEL(_machine_peak_read, MachinePeakReadArguments);

}  // namespace kernelpair
