// quantize_rows_int8: two passes over a row, the second one from the cache; a thread owns whole rows.
#include "kernels/quantize_rows_int8.h"

#include "core/parallel.h"
#include "linear/quantize.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainElements = 1 << 17;  // 10 us: less is done before a sleeping thread has woken

}  // namespace

void quantize_rows_int8(const QuantizeRowsInt8Arguments& call) {
  const int64_t rows = call.x.sizes[0], K = call.x.sizes[1];
  with_float(call.x.dtype, [&](auto element) {
    using T = decltype(element);
    parallel_for(rows, kGrainElements / (K + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        const RowScale row = quantize_row(at<T>(call.x, m), K, !call.azp.defined, at<int8_t>(call.q, m));
        *at<float>(call.scale, m) = row.scale;
        if (call.azp.defined) *at<int32_t>(call.azp, m) = row.azp;
      }
    });
  });
}

}  // namespace kernelpair::KP_TIER
