// Weights of float8_e4m3fn on their way into a product: codes become numbers, exactly, and take the scale of
// their block. A number times its scale is rounded once, to float32 or to bf16 for tiles.
#pragma once

#include "kernels/fp8_linear.h"
#include "linear/parts.h"
#include "simd/float8_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

// The scales of the 32 outputs of a panel, in the column of blocks that holds some k.
class PanelScales {
  const View& scales;
  const int64_t block_k;
  const float* rows[kPanelColumns];
  alignas(64) float values[kPanelColumns];
  int64_t from = 0, until = 0;  // the k that they hold for

 public:
  // Outputs behind the last one, which nobody sees, take its scale.
  PanelScales(const Fp8LinearArguments& call, int64_t p) : scales(call.scales), block_k(call.block_k) {
    for (int64_t n = 0; n < kPanelColumns; ++n) {
      const int64_t output = least(p * kPanelColumns + n, call.out.sizes[1] - 1);
      rows[n] = at<float>(scales, output / call.block_n);
    }
  }

  // So do columns behind the last one. Returns how many k they hold for.
  KP_INLINE int64_t move_to(int64_t k) {
    if (k < from || k >= until) fill(k);
    return until - k;
  }
  KP_INLINE F32x16 half(int half) const { return load(values + half * kLanes); }

 private:
  KP_NOINLINE void fill(int64_t k) {
    const int64_t column = least(k / block_k, scales.sizes[1] - 1);
    from = column * block_k;
    until = column == scales.sizes[1] - 1 ? INT64_MAX : from + block_k;
    for (int64_t n = 0; n < kPanelColumns; ++n) values[n] = rows[n][column * scales.strides[1]];
  }
};

KP_INLINE void prefetch_codes(const F8e4m3* codes) {
  __builtin_prefetch(reinterpret_cast<const char*>(codes) + kStreamAhead);
}

// `blocks` blocks of a panel as numbers, for a product whose sums take the scale.
KP_NOINLINE void decode_blocks(const F8e4m3* codes, int64_t blocks, Bf16* to) {
  for (const F8e4m3* const end = codes + blocks * kBlockElements; codes < end; codes += kPair, to += kPair) {
    prefetch_codes(codes);
    store_dwords(to, load_numbers(codes));
  }
}

// Sixteen outputs of a block, whose pairs of k from k on each have two scales.
template <class To>
KP_INLINE void scale_apart(const F8e4m3* codes, int64_t k, int half, PanelScales& scales, To* to) {
  for (int64_t end = k + kBlockK; k < end; k += 2, codes += kPair, to += kPair) {
    const I32x16 numbers = load_numbers(codes);
    scales.move_to(k);
    const F32x16 even = low_half(numbers) * scales.half(half);
    scales.move_to(k + 1);
    store_outputs(to, even, high_half(numbers) * scales.half(half));
  }
}

// `blocks` blocks of a panel, of which the first begins at k, as numbers times scales.
template <class To>
KP_NOINLINE void decode_blocks(const F8e4m3* codes, int64_t k, int64_t blocks, PanelScales& scales, To* to) {
  constexpr int64_t kTile = kBlockElements / 2;
  for (const int64_t end = k + blocks * kBlockK; k < end; k += kBlockK)
    for (int half = 0; half < 2; ++half, codes += kTile, to += kTile) {
      if (scales.move_to(k) < kBlockK) {
        scale_apart(codes, k, half, scales, to);
        continue;
      }
      const F32x16 scale = scales.half(half);
      for (int64_t i = 0; i < kTile; i += kPair) {
        prefetch_codes(codes + i);
        const I32x16 numbers = load_numbers(codes + i);
        store_outputs(to + i, low_half(numbers) * scale, high_half(numbers) * scale);
      }
    }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
