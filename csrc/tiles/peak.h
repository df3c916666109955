// As many bf16 products from registers as a tier can do.
#pragma once

#include "simd/vec_memory.h"
#include "tiles/tile_block.h"

namespace kernelpair::KP_TIER {
namespace {

// Independent sums: more than latency times issue rate (8 to 10 vectors), fewer than there are registers.
constexpr int kPeakSums = 12 / kPieces;

// Multiplies 4 KiB of operands `rounds` times; returns the number of multiply-adds.
#if defined(KP_PRODUCTS_TILE_REGISTERS) || defined(KP_PRODUCTS_SOFT_TILES)

// Two tiles of A times two of B, over and over, as the inner loops of the kernels do.
int64_t peak_products(const void* operands, int64_t rounds) {
  const char* data = static_cast<const char*>(operands);
  TileScope scope;
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  tile_load<4>(data, 64);
  tile_load<5>(data + 1024, 64);
  tile_load<6>(data + 2048, 64);
  tile_load<7>(data + 3072, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    tile_bf16<0, 4, 6>();
    tile_bf16<1, 4, 7>();
    tile_bf16<2, 5, 6>();
    tile_bf16<3, 5, 7>();
  }
  return rounds * 4 * 16 * 16 * 32;
}

#elif defined(KP_PRODUCTS_DOTS)

int64_t peak_products(const void* operands, int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_loadu_si512(operands);
  __m512 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, a);
    asm volatile("");
  }
  asm volatile("" ::"m"(sums));
  return rounds * kPeakSums * 2 * kLanes;
}

#else

int64_t peak_products(const void* operands, int64_t rounds) {
  const F32x16 a = load(static_cast<const Bf16*>(operands)),
               b = load(static_cast<const Bf16*>(operands) + kLanes);
  F32x16 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i) sums[i] = fma(a, b, sums[i]);
    asm volatile("");  // a round stays a round
  }
  asm volatile("" ::"m"(sums));  // somebody might look at them
  return rounds * kPeakSums * kLanes;
}

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
