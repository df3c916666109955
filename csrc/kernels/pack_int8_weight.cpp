// pack_int8_weight and unpack_int8_weight: a weight [N, K] of bytes to and from panels of 32 outputs, each a
// forward stream of blocks of 64 k; a block is two tiles of 16 outputs with four k side by side. The sum of each
// row goes beside it. A thread owns whole panels.
#include "kernels/pack_int8_weight.h"

#include "core/integers.h"
#include "core/parallel.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kPanelColumns = 32, kByteBlockWidth = 64, kTileElements = 1024;
constexpr int64_t kGrainElements = 1 << 17;  // what waking a thread costs, at 2 elements a ns

// Where the four bytes (n, k .. k + 3) of a panel lie in its stream, for k % 4 = 0.
KP_INLINE int64_t quad_offset(int64_t n, int64_t k) {
  return (k / kByteBlockWidth * 2 + n / 16) * kTileElements + k % kByteBlockWidth * 16 + n % 16 * 4;
}

// One output: its bytes go into the panel, zeros behind them; returns their sum.
int32_t pack_row(const int8_t* row, int64_t stride, int64_t inside, int64_t padded, int64_t n,
                 int8_t* panel) {
  int32_t sum = 0;
  for (int64_t k = 0; k < padded; k += 4) {
    int8_t* quad = panel + quad_offset(n, k);
    for (int64_t c = 0; c < 4; ++c) {
      quad[c] = k + c < inside ? row[(k + c) * stride] : int8_t{0};
      sum += quad[c];
    }
  }
  return sum;
}

template <class Body>
void for_each_panel(int64_t N, int64_t K, const Body& body) {
  const int64_t panel_elements = round_up(K, kByteBlockWidth) * kPanelColumns;
  parallel_for(divide_up(N, kPanelColumns), kGrainElements / panel_elements + 1,
               [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) body(p * kPanelColumns, p * panel_elements);
  });
}

}  // namespace

void pack_int8_weight(const PackInt8WeightArguments& call) {
  const View& weight = call.weight;
  const int64_t N = weight.sizes[0], K = weight.sizes[1];
  for_each_panel(N, K, [&](int64_t first, int64_t offset) {
    for (int64_t n = 0; n < kPanelColumns; ++n) {
      const bool live = first + n < N;
      const int32_t sum =
          pack_row(at<int8_t>(weight, live ? first + n : first), weight.strides[1], live ? K : 0,
                   round_up(K, kByteBlockWidth), n, at<int8_t>(call.data, 0) + offset);
      if (live) *at<int32_t>(call.sums, first + n) = sum;
    }
  });
}

void unpack_int8_weight(const PackInt8WeightArguments& call) {
  const int64_t N = call.weight.sizes[0], K = call.weight.sizes[1];
  for_each_panel(N, K, [&](int64_t first, int64_t offset) {
    const int8_t* panel = at<int8_t>(call.data, 0) + offset;
    for (int64_t n = 0; n < kPanelColumns && first + n < N; ++n)
      for (int64_t k = 0; k < K; ++k)
        *at<int8_t>(call.weight, first + n, k) = panel[quad_offset(n, k & ~int64_t{3}) + k % 4];
  });
}

}  // namespace kernelpair::KP_TIER
