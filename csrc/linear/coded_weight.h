// Weights of codes on their way into a product: codes become numbers that bf16 holds, exactly, and take the scale
// of their block. A number times its scale is rounded once, to float32 or to bf16 for tiles; of few rows the sums
// take the scale instead, where it holds for whole blocks.
//
// What the codes of one panel mean, and where their scales stand, is a Codes:
//   Codes(call, p)            // of panel p
//   move_to(k)                // to the scales of k; returns how many k they hold for, from k on
//   half(h)                   // the scales of sixteen outputs
//   numbers(codes, h)         // sixteen outputs at two neighbouring k: pairs of bf16, not scaled
//   two_numbers(codes, h)     // the same, and at the next two k
//   columns(codes, h, of_k)   // the same four k, each in floats
//   Crossed                   // may be missing or empty: how one row meets two_numbers in an order that costs less
//   scaled()                  // may be missing: a table, by which of(codes) are numbers times the scale of all outputs
//   kPairBytes                // what the codes of these take
//   whole_steps(call)         // whether no scale changes within a step of kBlockK
//   path<way>()               // the record of a way through the product
#pragma once

#include "linear/row_blocks.h"
#include "simd/pair_stores.h"

namespace kernelpair::KP_TIER {
namespace {

// The ways through a product of codes.
enum class Way {
  dots,
  tiles_few,
  tiles_whole,
  tiles_slices,
  vectors_straight,
  vectors_few,
  vectors_many,
  vectors_slices
};

template <class Codes>
constexpr int64_t kCodedBytes = kBlockK * Codes::kPairBytes;  // of a block: two halves of 16 pairs

// The line of the stream that is wanted soon, once for each line.
template <class Codes>
KP_INLINE void prefetch_codes(const uint8_t* codes, int64_t pair) {
  if (pair % (64 / Codes::kPairBytes) == 0) prefetch_stream(codes);
}

// `blocks` blocks of a panel as numbers, for a product whose sums take the scale.
template <class Codes>
KP_NOINLINE void decode_blocks(const uint8_t* codes, int64_t blocks, const Codes& panel, Bf16* to) {
  for (int64_t tile = 0; tile < 2 * blocks; ++tile)
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < kBlockK / 2; pair += 2, codes += 2 * Codes::kPairBytes, to += 2 * kPair) {
      prefetch_codes<Codes>(codes, pair);
      const TwoPairs numbers = panel.two_numbers(codes, tile % 2);
      store_dwords(to, numbers.first);
      store_dwords(to + kPair, numbers.second);
    }
}

// Sixteen outputs of a block, whose pairs of k from k on each have two scales.
template <class Codes, class To>
KP_INLINE void scale_apart(const uint8_t* codes, int64_t k, int half, Codes& panel, To* to) {
  for (int64_t end = k + kBlockK; k < end; k += 2, codes += Codes::kPairBytes, to += kPair) {
    panel.move_to(k);
    const F32x16 even = low_half(panel.numbers(codes, half)) * panel.half(half);
    panel.move_to(k + 1);
    store_outputs(to, even, high_half(panel.numbers(codes, half)) * panel.half(half));
  }
}

// Sixteen outputs of a block, by a table of codes.
template <class Table>
KP_INLINE void look_up_half(const uint8_t* codes, const Table& table, Bf16* to) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBlockElements / 2; i += 2 * kPair) {
    prefetch_stream(codes + i);
    const TwoPairs scaled = table.of(codes + i);
    store_dwords(to + i, scaled.first);
    store_dwords(to + i + kPair, scaled.second);
  }
}

// `blocks` blocks of a panel, of which the first begins at k, as numbers times scales.
template <class Codes, class To>
KP_NOINLINE void decode_blocks(const uint8_t* codes, int64_t k, int64_t blocks, Codes& panel, To* to) {
  constexpr int64_t kTile = kBlockElements / 2;
  for (const int64_t end = k + blocks * kBlockK; k < end; k += kBlockK)
    for (int half = 0; half < 2; ++half, codes += kCodedBytes<Codes> / 2, to += kTile) {
      if (panel.move_to(k) < kBlockK) {
        scale_apart(codes, k, half, panel, to);
        continue;
      }
      if constexpr (requires { panel.scaled(); } && sizeof(To) == sizeof(Bf16))
        if (const auto* table = panel.scaled()) {
          look_up_half(codes, *table, to);
          continue;
        }
      const F32x16 scale = panel.half(half);
#pragma GCC unroll 4
      for (int64_t pair = 0; pair < kBlockK / 2; pair += 2) {
        const uint8_t* from = codes + pair * Codes::kPairBytes;
        prefetch_codes<Codes>(from, pair);
        F32x16 of_k[4];
        panel.columns(from, half, of_k);
        store_outputs(to + pair * kPair, of_k[0] * scale, of_k[1] * scale);
        store_outputs(to + (pair + 1) * kPair, of_k[2] * scale, of_k[3] * scale);
      }
    }
}

// Panels for products on vectors.
template <class Codes>
struct CodedPanels {
  using Element = uint8_t;
  static constexpr int64_t kBlockUnits = kCodedBytes<Codes>;
  static constexpr int kStraightRows = kBothHalvesRows;

  const typename Codes::Arguments& call;

  bool is_straight() const { return Codes::whole_steps(call); }

  static void mark_way(bool few, bool sliced) {
    mark(few      ? Codes::template path<Way::vectors_few>()
         : sliced ? Codes::template path<Way::vectors_slices>()
                  : Codes::template path<Way::vectors_many>());
  }

  // Numbers go from their codes into the products; sums take the scale where it ends.
  template <int kRows>
  KP_NOINLINE void multiply_one(const float* x, const uint8_t* codes, int64_t p, int64_t blocks,
                                float* kept) const {
    mark(Codes::template path<Way::vectors_straight>());
    constexpr int kChains = kRows < 3 ? 2 : 1;  // of each sum: the products of one would wait for each other
    Codes panel(call, p);
    for (int64_t block = 0, count; block < blocks; block += count) {
      count = least(blocks - block, panel.move_to(block * kBlockK) / kBlockK);
      F32x16 sums[2][kRows][kChains] = {};
      for (int64_t b = 0; b < count; ++b, x += kBlockK * kRows)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          for (int k = 0; k < kBlockK; k += 4, codes += 2 * Codes::kPairBytes) {
            prefetch_codes<Codes>(codes, k / 2);
            F32x16 of_k[4];
            panel.columns(codes, half, of_k);
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
#pragma GCC unroll 12
              for (int r = 0; r < kRows; ++r) {
                F32x16& sum = sums[half][r][i % kChains];
                sum = fma(splat(x[(k + i) * kRows + r]), of_k[i], sum);
              }
          }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          float* to = kept + r * kPanelColumns + half * kLanes;
          const auto& chains = sums[half][r];
          const F32x16 sum = kChains == 2 ? chains[0] + chains[kChains - 1] : chains[0];
          store(to, fma(sum, panel.half(half), block ? load(to) : zero()));
        }
    }
  }

  const float* widened(const uint8_t* codes, int64_t p, int64_t block, int64_t count, float* to) const {
    Codes panel(call, p);
    decode_blocks(codes, block * kBlockK, count, panel, to);
    return to;
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
