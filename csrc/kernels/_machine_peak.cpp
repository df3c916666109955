// What one tier can do at most, for the roofline of `kernelpair bench`: products from registers, and reading a buffer.
#include "common/parallel.h"
#include "common/tile_block.h"
#include "common/vec_memory.h"

namespace kernelpair::KP_TIER {
namespace {

// Independent sums: more than latency times issue rate (8 to 10 vectors), fewer than there are registers.
constexpr int kSums = 12 / kPieces;
constexpr int kReadSums = kPieces == 1 ? 8 : 2;
constexpr int64_t kReadStep = kReadSums * kLanes;

#if defined(KP_TIER_AMX) || defined(KP_TIER_AMX_EMULATED)

// Two tiles of A times two of B, over and over, as the inner loops of the kernels do.
int64_t products(const View& operands, int64_t rounds) {
  const char* data = static_cast<const char*>(operands.data);
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

#elif defined(KP_TIER_AVX512_BF16)

int64_t products(const View& operands, int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_loadu_si512(operands.data);
  __m512 sums[kSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, a);
    asm volatile("");
  }
  asm volatile("" ::"m"(sums));
  return rounds * kSums * 2 * kLanes;
}

#else

int64_t products(const View& operands, int64_t rounds) {
  const F32x16 a = load(static_cast<const Bf16*>(operands.data)), b = load(static_cast<const Bf16*>(operands.data) + kLanes);
  F32x16 sums[kSums] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) sums[i] = fma(a, b, sums[i]);
    asm volatile("");  // a round stays a round
  }
  asm volatile("" ::"m"(sums));  // somebody might look at them
  return rounds * kSums * kLanes;
}

#endif

}  // namespace

// operands: 4 KiB of bf16 numbers; done [threads] i64: the multiply-adds of each thread, `rounds` times its inner loop.
void _machine_peak_products(const View& operands, const View& done, int64_t rounds) {
  parallel_for(done.sizes[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) *at<int64_t>(done, thread) = products(operands, rounds);
  });
}

// Each thread reads its part of the f32 buffer `rounds` times; read [threads] i64: the bytes of each thread.
void _machine_peak_read(const View& buffer, const View& read, int64_t rounds) {
  const int64_t threads = read.sizes[0], part = buffer.sizes[0] / threads / kReadStep * kReadStep;
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      const float* from = static_cast<const float*>(buffer.data) + thread * part;
      F32x16 sums[kReadSums] = {};
      for (int64_t round = 0; round < rounds; ++round) {
        for (int64_t i = 0; i < part; i += kReadStep)
          _Pragma("GCC unroll 16") for (int j = 0; j < kReadSums; ++j) sums[j] = sums[j] + load(from + i + j * kLanes);
        asm volatile("" ::: "memory");  // or one round would do
      }
      asm volatile("" ::"m"(sums));
      *at<int64_t>(read, thread) = rounds * part * static_cast<int64_t>(sizeof(float));
    }
  });
}

}  // namespace kernelpair::KP_TIER
