// What one tier can do at most, for the roofline of `kernelpair bench`: products from registers, and reading
// a buffer.
#include "kernels/_machine_peak.h"
#include "core/parallel.h"
#include "tiles/peak.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kReadSums = kPieces == 1 ? 8 : 2;  // chains of additions side by side
constexpr int64_t kReadStep = kReadSums * kLanes;

}  // namespace

void _machine_peak_products(const MachinePeakProductsArguments& call) {
  const auto products = call.operands.dtype == Dtype::i8 ? peak_byte_products : peak_products;
  parallel_for(call.done.sizes[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread)
      *at<int64_t>(call.done, thread) = products(call.operands.data, call.rounds);
  });
}

void _machine_peak_read(const MachinePeakReadArguments& call) {
  const int64_t threads = call.read.sizes[0], part = call.buffer.sizes[0] / threads / kReadStep * kReadStep;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      const float* from = static_cast<const float*>(call.buffer.data) + thread * part;
      F32x16 sums[kReadSums] = {};
      for (int64_t round = 0; round < call.rounds; ++round) {
        for (int64_t i = 0; i < part; i += kReadStep)
#pragma GCC unroll 16
          for (int j = 0; j < kReadSums; ++j) sums[j] = sums[j] + load(from + i + j * kLanes);
        asm volatile("" ::: "memory");  // or one round would do
      }
      asm volatile("" ::"m"(sums));
      *at<int64_t>(call.read, thread) = call.rounds * part * static_cast<int64_t>(sizeof(float));
    }
  });
}

}  // namespace kernelpair::KP_TIER
