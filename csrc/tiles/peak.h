// As many products of bf16, or of bytes, from registers as a tier can do.
#pragma once

#include "simd/bytes.h"
#include "simd/vec_memory.h"
#include "tiles/tile_block.h"

namespace kernelpair::KP_TIER {
namespace {

// Independent sums: more than latency times issue rate (8 to 10 vectors), fewer than there are registers.
constexpr int kPeakSums = 12 / kPieces;

// Multiplies 4 KiB of operands `rounds` times; returns the number of multiply-adds.
#if defined(KP_PRODUCTS_TILE_REGISTERS) || defined(KP_PRODUCTS_SOFT_TILES)

KP_INLINE void load_peak_tiles(const char* data) {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  tile_load<4>(data, 64);
  tile_load<5>(data + 1024, 64);
  tile_load<6>(data + 2048, 64);
  tile_load<7>(data + 3072, 64);
}

// Two tiles of A times two of B, over and over, as the inner loops of the kernels do.
int64_t peak_products(const void* operands, int64_t rounds) {
  TileScope scope;
  load_peak_tiles(static_cast<const char*>(operands));
  for (int64_t round = 0; round < rounds; ++round) {
    tile_bf16<0, 4, 6>();
    tile_bf16<1, 4, 7>();
    tile_bf16<2, 5, 6>();
    tile_bf16<3, 5, 7>();
  }
  return rounds * 4 * 16 * 16 * 32;
}

int64_t peak_byte_products(const void* operands, int64_t rounds) {
  TileScope scope;
  load_peak_tiles(static_cast<const char*>(operands));
  for (int64_t round = 0; round < rounds; ++round) {
    tile_int8<0, 4, 6>();
    tile_int8<1, 4, 7>();
    tile_int8<2, 5, 6>();
    tile_int8<3, 5, 7>();
  }
  return rounds * 4 * 16 * 16 * 64;
}

#elif defined(KP_PRODUCTS_DOTS)

int64_t peak_products(const void* operands, int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_loadu_si512(operands);
  __m512 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], a, a);
      asm volatile("" : "+v"(sums[i]));  // sums that are all the same would be one
    }
  }
  __m512 total = sums[0];  // not the sums themselves: they would have to lie in memory all the while
#pragma GCC unroll 16
  for (int i = 1; i < kPeakSums; ++i) total = _mm512_add_ps(total, sums[i]);
  asm volatile("" ::"v"(total));
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

#if !defined(KP_PRODUCTS_TILE_REGISTERS) && !defined(KP_PRODUCTS_SOFT_TILES)

int64_t peak_byte_products(const void* operands, int64_t rounds) {
  const int8_t* data = static_cast<const int8_t*>(operands);
  const Quads weights = load_quads(data);
  uint32_t quads[kPeakSums * kQuadDwords];
  for (int i = 0; i < kPeakSums; ++i) spread_quad(data + kVectorBytes + 4 * i, quads + i * kQuadDwords);
  I32x16 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i) sums[i] = add_products(sums[i], quads + i * kQuadDwords, weights);
    asm volatile("" : "+m"(quads));  // products of the round before do not do
  }
  I32x16 total = sums[0];  // not the sums themselves: they would have to lie in memory all the while
#pragma GCC unroll 16
  for (int i = 1; i < kPeakSums; ++i) total = total + sums[i];
  asm volatile("" ::"m"(total));
  return rounds * kPeakSums * 4 * kLanes;
}

#endif

}  // namespace
}  // namespace kernelpair::KP_TIER
