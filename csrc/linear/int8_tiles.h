// int8_linear on tiles: rows as bytes, 64 along k, and exact sums in int32. How tiles and panels pass each other is
// in linear_tiles.h.
#pragma once

#include "linear/int8_parts.h"
#include "linear/linear_tiles.h"

namespace kernelpair::KP_TIER {
namespace {

KP_PATH(int8_tiles_few);
KP_PATH(int8_tiles_whole);
KP_PATH(int8_tiles_slices);

struct TileInt8 : PanelTiles<TileInt8> {
  using Product = Int8Product;

  const Int8LinearArguments& call;
  const ByteRows bytes{call};
  ChunkScales& scales;

  TileInt8(const Int8LinearArguments& arguments, ChunkScales& chunk_scales)
      : PanelTiles(arguments.data, arguments.out), call(arguments), scales(chunk_scales) {}

  static void mark_way(bool few, bool sliced) {
    mark(few ? paths::int8_tiles_few : sliced ? paths::int8_tiles_slices : paths::int8_tiles_whole);
  }

  // The tail of k is 0. Rows past the end stay as they are: nobody reads their sums.
  void pack_tile_rows(int64_t first, int64_t live, char* to, int64_t step) const {
    auto* room = static_cast<int8_t*>(thread_scratch(bytes.K));
    for (int64_t r = 0; r < live; ++r) {
      const int8_t* row = bytes.row(first + r, room, scales.of_row[(first + r) % kChunkRows]);
      for (int64_t s = 0; s < steps; ++s) {
        char* line = to + s * step + r * kByteBlockWidth;
        const int64_t inside = least(bytes.K - s * kByteBlockWidth, kByteBlockWidth);
        __builtin_memcpy(line, row + s * kByteBlockWidth, inside);
        __builtin_memset(line + inside, 0, kByteBlockWidth - inside);
      }
    }
  }

  void finish(const float* sums, int64_t first, int64_t rows, int64_t p) const {
    const PanelOutputs outputs(call, p);
    with_float(call.out.dtype, [&](auto element) {
      auto* to = at<decltype(element)>(call.out, first, p * kPanelColumns);
      for (int64_t r = 0; r < rows; ++r, to += N) {
        const auto* low =
            reinterpret_cast<const int32_t*>(sums) + r / kTileRows * 512 + r % kTileRows * kTileRows;
        outputs.store(to, low, low + kTileFloats, scales.of_row[(first + r) % kChunkRows], 0);
      }
    });
  }
};

}  // namespace
}  // namespace kernelpair::KP_TIER
