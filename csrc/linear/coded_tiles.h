// Linear layers on tiles of bf16 whose weights are codes (coded_weight.h). A slice of a panel is decoded before it
// is multiplied, once for a pass of rows; up to kDirectRows, where there are dot products, take numbers as they are
// read.
#pragma once

#include "linear/coded_weight.h"
#include "linear/linear_tiles.h"
#include "linear/linear_vectors.h"
#include "tiles/dot_pairs.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int kDirectRows = 8;     // 10 took 0.93 of the time of decoding first, 12 as long
constexpr int64_t kFewSteps = 16;  // of a panel and up to 16 rows of x: 48 KiB, half of it still in L1

template <class Codes, class Kind>
struct CodedProduct : Bf16Tiles<Kind> {
  using Bf16Tiles<Kind>::steps, Bf16Tiles<Kind>::panel;
  static constexpr bool kDecodes = true;
  static constexpr int64_t kStepBytes = kCodedBytes<Codes>;

  const typename Codes::Arguments& call;
  Bf16* const room;  // of decoded_bytes(); without it a thread's scratch
  const bool scale_sums = Codes::whole_steps(call);

  CodedProduct(const typename Codes::Arguments& arguments, void* decode_to)
      : Bf16Tiles<Kind>(arguments.x, arguments.data, arguments.bias, arguments.out),
        call(arguments),
        room(static_cast<Bf16*>(decode_to)) {}

  static int64_t decoded_bytes() { return kSliceSteps * 2 * kTileBytes; }
  Bf16* decoded() const { return room ? room : static_cast<Bf16*>(thread_scratch(decoded_bytes())); }

  KP_INLINE const uint8_t* codes_at(int64_t p, int64_t step) const {
    return reinterpret_cast<const uint8_t*>(panel(p, step));
  }

  // Decoded: at most kSliceSteps of them at a time.
  DenseTiles panel_tiles(int64_t p, int64_t step, int64_t count) const {
    Bf16* tiles = decoded();
    Codes codes(call, p);
    decode_blocks(codes_at(p, step), step * kBlockK, count, codes, tiles);
    return {tiles, kTileBytes, 2 * kTileBytes};
  }

  // Up to sixteen rows: the sums of slices that are short enough for L1 take their scale, where they have one.
  void multiply_few(const char* x_tiles, int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    if constexpr (kHasDotProducts)
      if (rows <= kDirectRows && scale_sums)
        return with_count<kDirectRows>(rows,
                                       [&](auto n) { multiply_straight<n>(x_tiles, first, begin, end); });
    const TileShape shape{static_cast<int>(rows), kTileRows};
    TileScope scope(shape);
    const int64_t x_bytes = row_tile_bytes(rows);
    Bf16* tiles = decoded();
    alignas(64) float sums[512], slice[512];
    for (int64_t p = begin; p < end; ++p) {
      Codes codes(call, p);
      for (int64_t step = 0, count; step < steps; step += count) {
        count = least(steps - step, kFewSteps);
        if (scale_sums) {
          count = least(count, codes.move_to(step * kBlockK) / kBlockK);
          decode_blocks(codes_at(p, step), count, codes, tiles);
        } else {
          decode_blocks(codes_at(p, step), step * kBlockK, count, codes, tiles);
        }
        block_product<1, 2>(shape, DenseTiles{x_tiles + step * x_bytes, 0, x_bytes},
                            DenseTiles{tiles, kTileBytes, 2 * kTileBytes}, count, nullptr, {slice});
        for (int half = 0; half < 2; ++half) {
          const F32x16 scale = scale_sums ? codes.half(half) : splat(1.0f);
          add_slice(sums + half * kTileFloats, slice + half * kTileFloats, rows, scale, step == 0);
        }
      }
      this->finish(sums, first, rows, p);
    }
  }

  template <int kRows>
  static constexpr bool kCrossed = kRows == 1 && requires { &Codes::Crossed::numbers; };

  // A few rows: numbers go from their codes into the products, in chains that do not wait for each other.
  template <int kRows>
  KP_NOINLINE void multiply_straight(const char* x_tiles, int64_t first, int64_t begin, int64_t end) const {
    mark(Codes::template path<Way::dots>());
    constexpr int kChains = kRows < 2 ? 4 : 2;  // of each sum
    alignas(64) float sums[2 * kTileFloats];
    for (int64_t p = begin; p < end; ++p) {
      Codes codes(call, p);
      F32x16 totals[2][kRows] = {};
      for (int64_t step = 0, count; step < steps; step += count) {
        count = least(steps - step, codes.move_to(step * kBlockK) / kBlockK);
        F32x16 chains[2][kRows][kChains] = {};
        for (int64_t s = step; s < step + count; ++s)
          add_step(x_tiles + s * row_tile_bytes(kRows), codes_at(p, s), codes, chains);
        for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const auto& chain = chains[half][r];
            F32x16 sum = chain[0] + chain[1];
            if constexpr (kCrossed<kRows>)
              sum = Codes::Crossed::in_order(chain[0] + chain[2], chain[1] + chain[3]);
            else if constexpr (kChains == 4)
              sum = sum + (chain[2] + chain[3]);
            totals[half][r] = fma(sum, codes.half(half), totals[half][r]);
          }
      }
      for (int half = 0; half < 2; ++half)
        for (int r = 0; r < kRows; ++r) store(sums + half * kTileFloats + r * kTileRows, totals[half][r]);
      this->finish(sums, first, kRows, p);
    }
  }

  // Rows of a tile of x, each pair of their k in all lanes, times a block of codes, in the order of memory.
  template <int kRows, int kChains>
  KP_INLINE static void add_step(const char* x, const uint8_t* from, const Codes& codes,
                                 F32x16 (&chains)[2][kRows][kChains]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      // x is read again for the other half: kept in registers, it would be written to the stack.
      asm("" : "+r"(x));
      for (int pair = 0; pair < kBlockK / 2; pair += kChains, from += kChains * Codes::kPairBytes)
#pragma GCC unroll 2
        for (int next = 0; next < kChains; next += 2) {
          const uint8_t* at = from + next * Codes::kPairBytes;
          prefetch_codes<Codes>(at, pair + next);
          if constexpr (kCrossed<kRows>) {
            const TwoPairs numbers = Codes::Crossed::numbers(at);
            const I32x16 both = Codes::Crossed::two_dwords(x + 4 * (pair + next));
            F32x16* chain = chains[half][0] + next;
            chain[0] = dot_pairs(chain[0], numbers.first, both);
            chain[1] = dot_pairs(chain[1], numbers.second, both);
            continue;
          }
          const TwoPairs numbers = codes.two_numbers(at, half);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const char* x_at = x + 64 * r + 4 * (pair + next);
            F32x16* chain = chains[half][r] + next;
            chain[0] = dot_pairs(chain[0], numbers.first, splat_dword(x_at));
            chain[1] = dot_pairs(chain[1], numbers.second, splat_dword(x_at + 4));
          }
        }
    }
  }

  KP_INLINE static I32x16 splat_dword(const char* from) {
    int32_t dword;
    __builtin_memcpy(&dword, from, sizeof dword);
    return splat_int(dword);
  }

  static void add_slice(float* sums, const float* slice, int64_t rows, F32x16 scale, bool fresh) {
    for (int64_t at = 0; at < rows * kTileRows; at += kTileRows)
      store(sums + at, fma(load(slice + at), scale, fresh ? zero() : load(sums + at)));
  }
};

template <class Codes>
struct CodedTiles : CodedProduct<Codes, CodedTiles<Codes>> {
  explicit CodedTiles(const typename Codes::Arguments& call, void* decode_to = nullptr)
      : CodedProduct<Codes, CodedTiles>(call, decode_to) {}

  static void mark_way(bool few, bool sliced) {
    mark(few      ? Codes::template path<Way::tiles_few>()
         : sliced ? Codes::template path<Way::tiles_slices>()
                  : Codes::template path<Way::tiles_whole>());
  }
};

// A coded weight times rows of any float dtype: tiles for bf16 where the tier has them, else vectors.
template <class Codes>
void multiply_coded(const typename Codes::Arguments& call) {
  if (call.out.sizes[0] == 0) return;
  if (kHasTiles && call.x.dtype == Dtype::bf16) return CodedTiles<Codes>(call).run();
  VectorLinear<CodedPanels<Codes>>(call.x, call.data, call.bias, call.out, {call}).run();
}

}  // namespace
}  // namespace kernelpair::KP_TIER
