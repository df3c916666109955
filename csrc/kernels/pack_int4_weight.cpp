// pack_int4_weight and unpack_int4_weight: the panels of pack_panels.h with two codes in a byte, and the scales and
// zero points of a panel's outputs side by side.
#include "kernels/pack_int4_weight.h"

#include "linear/pack_panels.h"
#include "simd/dtypes.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr uint8_t kMiddle = 8;  // the zero point of a weight that has none

// The byte of output n of a panel that holds the codes of k and k + 1, k even.
KP_INLINE int64_t byte_of(int64_t n, int64_t k) { return packed_offset(n, k, 2) / 2; }

void pack_codes(const View& codes, uint8_t* panel, int64_t first_n) {
  const int64_t N = codes.sizes[0], K = codes.sizes[1];
  for (int64_t n = 0; n < kPanel; ++n) {
    const int64_t inside = first_n + n < N ? K : 0;
    const auto code = [&](int64_t k) {
      return k < inside ? *at<const uint8_t>(codes, first_n + n, k) : uint8_t{0};
    };
    for (int64_t k = 0; k < round_up(K, kPanel); k += 2)
      panel[byte_of(n, k)] = static_cast<uint8_t>(code(k) | code(k + 1) << 4);
  }
}

void unpack_codes(const uint8_t* panel, const View& codes, int64_t first_n) {
  const int64_t N = codes.sizes[0], K = codes.sizes[1];
  for (int64_t n = 0; n < kPanel && first_n + n < N; ++n)
    for (int64_t k = 0; k < K; ++k)
      *at<uint8_t>(codes, first_n + n, k) = panel[byte_of(n, k - k % 2)] >> 4 * (k % 2) & 15;
}

}  // namespace

void pack_int4_weight(const PackInt4WeightArguments& call) {
  const int64_t N = call.codes.sizes[0], groups = call.scales.sizes[1];
  for_each_panel(N, call.codes.sizes[1], [&](int64_t p, int64_t offset) {
    pack_codes(call.codes, at<uint8_t>(call.data, 0) + offset / 2, p * kPanel);
    float* scale = at<float>(call.packed_scales, p);
    uint8_t* zero = at<uint8_t>(call.packed_zeros, p);
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t n = p * kPanel; n < (p + 1) * kPanel; ++n) {
        *scale++ = n < N ? load_one(call.scales.dtype, at(call.scales, n, g)) : 0.0f;
        *zero++ = n >= N ? 0 : call.zeros.defined ? *at<uint8_t>(call.zeros, n, g) : kMiddle;
      }
  });
}

void unpack_int4_weight(const PackInt4WeightArguments& call) {
  const int64_t N = call.codes.sizes[0], groups = call.scales.sizes[1];
  for_each_panel(N, call.codes.sizes[1], [&](int64_t p, int64_t offset) {
    unpack_codes(at<const uint8_t>(call.data, 0) + offset / 2, call.codes, p * kPanel);
    for (int64_t n = p * kPanel; n < least((p + 1) * kPanel, N); ++n)
      for (int64_t g = 0; g < groups; ++g) {
        *at<float>(call.scales, n, g) = at<float>(call.packed_scales, p, g)[n % kPanel];
        *at<uint8_t>(call.zeros, n, g) = at<uint8_t>(call.packed_zeros, p, g)[n % kPanel];
      }
  });
}

}  // namespace kernelpair::KP_TIER
