// As many products of bf16, or of bytes, from registers as a tier can do.
#pragma once

#include "simd/bytes.h"
#include "simd/vec_memory.h"
#include "tiles/dot_pairs.h"
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

#else

// Sums that are all the same would be one.
KP_INLINE void keep_apart(F32x16& sum) {
#if defined(KP_EMULATED_AVX512F)
  asm volatile("" : "+m"(sum));
#elif defined(__AVX512F__)
  asm volatile("" : "+v"(sum.p[0]));
#elif defined(__SSE2__)
  KP_EACH_PIECE(asm volatile("" : "+x"(sum.p[i])));
#else
  asm volatile("" : "+m"(sum));
#endif
}

int64_t peak_products(const void* operands, int64_t rounds) {
  const auto* numbers = static_cast<const Bf16*>(operands);
#if defined(KP_PRODUCTS_DOTS)
  constexpr int64_t kProducts = 2 * kLanes;
  const I32x16 pairs = load_dwords(numbers);
  const auto add = [&](F32x16 sum) KP_LAMBDA_INLINE { return dot_pairs(sum, pairs, pairs); };
#else
  constexpr int64_t kProducts = kLanes;
  const F32x16 a = load(numbers), b = load(numbers + kLanes);
  const auto add = [&](F32x16 sum) KP_LAMBDA_INLINE { return fma(a, b, sum); };
#endif
  F32x16 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i) {
      sums[i] = add(sums[i]);
      keep_apart(sums[i]);
    }
  }
  F32x16 total = sums[0];  // not the sums themselves: they would have to lie in memory all the while
#pragma GCC unroll 16
  for (int i = 1; i < kPeakSums; ++i) total = total + sums[i];
  keep_apart(total);
  return rounds * kPeakSums * kProducts;
}

#endif

#if !defined(KP_PRODUCTS_TILE_REGISTERS) && !defined(KP_PRODUCTS_SOFT_TILES)

int64_t peak_byte_products(const void* operands, int64_t rounds) {
  const int8_t* data = static_cast<const int8_t*>(operands);
  I32x16 weights[kQuadDwords];
  weights[0] = load_quads<0>(data);
  if (kQuadDwords > 1) weights[kQuadDwords - 1] = load_quads<1>(data);
  uint32_t quads[kPeakSums * kQuadDwords];
  for (int i = 0; i < kPeakSums; ++i) spread_quad(data + kVectorBytes + 4 * i, quads + i * kQuadDwords);
  I32x16 sums[kPeakSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kPeakSums; ++i)
#pragma GCC unroll 2
      for (int part = 0; part < kQuadDwords; ++part)
        sums[i] = add_products(sums[i], quads[i * kQuadDwords + part], weights[part]);
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
