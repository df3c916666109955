// fp8_to_float: the numbers that codes of float8_e4m3fn stand for. Nothing rounds: each of them is one of
// bf16, fp16 and fp32. Threads share the rows.
#include "kernels/fp8_to_float.h"

#include "simd/float8_pairs.h"  // first: templates of the next ones load its elements

#include "core/parallel.h"
#include "linear/parts.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrainElements = 1 << 17;  // 60 us at 2 elements a ns: what waking a thread costs

}  // namespace

void fp8_to_float(const Fp8ToFloatArguments& call) {
  const Rows rows{call.codes};
  const int64_t M = call.out.sizes[0], K = call.out.sizes[1], stride = rows.column_stride();
  if (M == 0 || K == 0) return;
  with_float(call.out.dtype, [&](auto element) {
    parallel_for(M, kGrainElements / K + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        const F8e4m3* row = rows.row<F8e4m3>(m);
        auto* to = at<decltype(element)>(call.out, m);
        if (stride == 1) {
          widen_codes(row, K, to);
          continue;
        }
        for (int64_t k = 0; k < K; k += kLanes) {
          const int lanes = lanes_left(K - k);
          store(to + k, load_columns(row, stride, k, lanes), lanes);
        }
      }
    });
  });
}

}  // namespace kernelpair::KP_TIER
