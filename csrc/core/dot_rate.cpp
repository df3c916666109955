#include "core/dot_rate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kernelpair {
namespace {

#if defined(__x86_64__)

constexpr int kRounds = 1024;  // of a sample: a few microseconds
constexpr int kSamples = 40;  // in turns; the best of each counts, since what disturbs one only slows it down

// Sixteen sums cover the latency of either instruction; the empty asm keeps them in registers, and the loop as it is.
#define KP_SIXTEEN(each)                                                                              \
  each(s0) each(s1) each(s2) each(s3) each(s4) each(s5) each(s6) each(s7) each(s8) each(s9) each(s10) \
      each(s11) each(s12) each(s13) each(s14) each(s15)
#define KP_ZERO(sum) __m512 sum{};
#define KP_KEEP(sum) asm volatile("" : "+v"(sum));

__attribute__((target("avx512f"), noinline)) void fma_rounds() {
#define KP_FMA(sum) sum = _mm512_fmadd_ps(x, x, sum);
  KP_ZERO(x)
  KP_KEEP(x)
  KP_SIXTEEN(KP_ZERO)
  for (int i = 0; i < kRounds; ++i) {
    KP_SIXTEEN(KP_FMA)
    KP_SIXTEEN(KP_KEEP)
  }
#undef KP_FMA
}

__attribute__((target("avx512f,avx512bw,avx512bf16"), noinline)) void dot_rounds() {
#define KP_DOT(sum) sum = _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)x);
  KP_ZERO(x)
  KP_KEEP(x)
  KP_SIXTEEN(KP_ZERO)
  for (int i = 0; i < kRounds; ++i) {
    KP_SIXTEEN(KP_DOT)
    KP_SIXTEEN(KP_KEEP)
  }
#undef KP_DOT
}

#undef KP_KEEP
#undef KP_ZERO
#undef KP_SIXTEEN

double seconds(void (*rounds)()) {
  const auto start = std::chrono::steady_clock::now();
  rounds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double measured() {
  double fma = std::numeric_limits<double>::infinity(), dot = fma;
  for (int i = 0; i < kSamples; ++i) {
    fma = std::min(fma, seconds(fma_rounds));
    dot = std::min(dot, seconds(dot_rounds));
  }
  return 2 * fma / dot;
}

#else

double measured() { return 0; }

#endif

}  // namespace

double dot_rate() {
  static const double rate = measured();
  return rate;
}

}  // namespace kernelpair
