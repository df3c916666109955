#include "tiles/soft_product.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kernelpair::soft_tile {
namespace {

#define KP_ALWAYS_INLINE inline __attribute__((always_inline))

struct Bf16Pair {
  static KP_ALWAYS_INLINE float wide(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

// In integers: a conversion in floating point would flush denormal halves.
struct HalfPair {
  static KP_ALWAYS_INLINE float wide(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31;
    uint32_t fraction = bits & 1023, word;
    if (exponent == 31) {
      word = sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0);
    } else if (exponent) {
      word = sign | (exponent + 112) << 23 | fraction << 13;
    } else if (fraction) {
      const int shift = __builtin_clz(fraction) - 21;  // brings the leading bit to the tenth place
      word = sign | static_cast<uint32_t>(113 - shift) << 23 | (fraction << shift & 1023) << 13;
    } else {
      word = sign;
    }
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

// One row of C: sixteen outputs side by side, so that the compiler makes vectors of whatever width the target
// has.
template <class Pair>
KP_ALWAYS_INLINE void row_sums(float* c, const uint16_t* a, const Tile& b, int depth) {
  float even[kLanes] = {}, odd[kLanes] = {};
  for (int k = 0; k < depth; ++k) {
    const float a_even = Pair::wide(a[2 * k]), a_odd = Pair::wide(a[2 * k + 1]);
    uint32_t dwords[kLanes];
    std::memcpy(dwords, b.row[k], sizeof dwords);
    float b_even[kLanes], b_odd[kLanes];
    for (int n = 0; n < kLanes; ++n) b_even[n] = Pair::wide(static_cast<uint16_t>(dwords[n]));
    for (int n = 0; n < kLanes; ++n) b_odd[n] = Pair::wide(static_cast<uint16_t>(dwords[n] >> 16));
    for (int n = 0; n < kLanes; ++n) even[n] = __builtin_fmaf(a_even, b_even[n], even[n]);
    for (int n = 0; n < kLanes; ++n) odd[n] = __builtin_fmaf(a_odd, b_odd[n], odd[n]);
  }
  for (int n = 0; n < kLanes; ++n) c[n] = c[n] + (even[n] + odd[n]);
}

template <class Pair>
KP_ALWAYS_INLINE void tile_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  for (int m = 0; m < rows; ++m) {
    float c_row[kLanes];
    uint16_t a_row[2 * kLanes];
    std::memcpy(c_row, c.row[m], sizeof c_row);
    std::memcpy(a_row, a.row[m], sizeof a_row);
    row_sums<Pair>(c_row, a_row, b, depth);
    std::memcpy(c.row[m], c_row, sizeof c_row);
  }
}

// fmaf of the C library where the CPU has no FMA: the same bits, slowly.
void bf16_any(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  tile_sums<Bf16Pair>(c, a, b, rows, depth);
}
void half_any(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  tile_sums<HalfPair>(c, a, b, rows, depth);
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) void bf16_fma(Tile& c, const Tile& a, const Tile& b, int rows,
                                                  int depth) {
  tile_sums<Bf16Pair>(c, a, b, rows, depth);
}
__attribute__((target("avx2,fma"))) void half_fma(Tile& c, const Tile& a, const Tile& b, int rows,
                                                  int depth) {
  tile_sums<HalfPair>(c, a, b, rows, depth);
}

// Four rows of C at a time: eight chains, and a dword of B is widened once for all of them.
__attribute__((target("avx512f"))) void bf16_avx512(Tile& c, const Tile& a, const Tile& b, int rows,
                                                    int depth) {
  constexpr int kRun = 4;
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int m = 0; m < rows; m += kRun) {  // rows past the last are computed and not stored
    __m512 even[kRun] = {}, odd[kRun] = {};
    for (int k = 0; k < depth; ++k) {
      const __m512i pair = _mm512_load_si512(b.row[k]);
      const __m512 b_even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      const __m512 b_odd = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
#pragma GCC unroll 4
      for (int r = 0; r < kRun; ++r) {
        int dword;
        std::memcpy(&dword, a.row[m + r] + 4 * k, 4);
        const __m512 a_even = _mm512_castsi512_ps(_mm512_set1_epi32(dword << 16));
        const __m512 a_odd = _mm512_castsi512_ps(_mm512_set1_epi32(dword & static_cast<int>(0xffff0000)));
        even[r] = _mm512_fmadd_ps(a_even, b_even, even[r]);
        odd[r] = _mm512_fmadd_ps(a_odd, b_odd, odd[r]);
      }
    }
    for (int r = 0; r < kRun && m + r < rows; ++r)
      _mm512_store_ps(c.row[m + r],
                      _mm512_add_ps(_mm512_load_ps(c.row[m + r]), _mm512_add_ps(even[r], odd[r])));
  }
}

Product* choose_bf16() {
  if (__builtin_cpu_supports("avx512f")) return bf16_avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? bf16_fma : bf16_any;
}
Product* choose_half() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? half_fma : half_any;
}

struct FlushScope {  // round to nearest even, exceptions masked, denormals to zero both ways
  unsigned before = _mm_getcsr();
  FlushScope() { _mm_setcsr(0x1f80 | 0x8000 | 0x0040); }
  ~FlushScope() { _mm_setcsr(before); }
};

#else

Product* choose_bf16() { return bf16_any; }
Product* choose_half() { return half_any; }

struct FlushScope {};

#endif

template <class A, class B>
KP_ALWAYS_INLINE void byte_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  for (int m = 0; m < rows; ++m) {
    uint32_t sums[kLanes];
    A left[kRowBytes];
    std::memcpy(sums, c.row[m], sizeof sums);
    std::memcpy(left, a.row[m], sizeof left);
    for (int k = 0; k < depth; ++k) {
      B right[kRowBytes];
      std::memcpy(right, b.row[k], sizeof right);
      for (int n = 0; n < kLanes; ++n)
        for (int i = 0; i < 4; ++i)
          sums[n] += static_cast<uint32_t>(static_cast<int32_t>(left[4 * k + i]) * right[4 * n + i]);
    }
    std::memcpy(c.row[m], sums, sizeof sums);
  }
}

}  // namespace

void bf16_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  static Product* const sums = choose_bf16();
  FlushScope flush;
  sums(c, a, b, rows, depth);
}

void half_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  static Product* const sums = choose_half();
  FlushScope flush;
  sums(c, a, b, rows, depth);
}

void uu8_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  byte_sums<uint8_t, uint8_t>(c, a, b, rows, depth);
}
void us8_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  byte_sums<uint8_t, int8_t>(c, a, b, rows, depth);
}
void su8_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  byte_sums<int8_t, uint8_t>(c, a, b, rows, depth);
}
void ss8_sums(Tile& c, const Tile& a, const Tile& b, int rows, int depth) {
  byte_sums<int8_t, int8_t>(c, a, b, rows, depth);
}

}  // namespace kernelpair::soft_tile
