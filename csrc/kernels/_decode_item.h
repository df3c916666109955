// The engine of decode_attention, mla_decode and paged_attention: one item of a decode call, wherever its keys lie.
//
// An item is one request, one run of its keys (a split) and one run of its kv heads. Its kernel knows where the
// operands are and where the result goes, and says so in a DecodeSource; the engine is compiled once a tier.
#pragma once

#include "attention/exponents.h"
#include "core/integers.h"
#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

constexpr int64_t kMostBlockKeys = 128;
constexpr int64_t kTileKeys = 16;

// Of a cache of codes, whose rows the engine gets as numbers of the item's dtype, a block of keys at a time.
struct CodeShape {
  int64_t row_bytes = 0;  // that the numbers of a key and its value take; 0: the cache has no codes
  int64_t k_head_stride = 0, v_head_stride = 0;  // bytes from one kv head to the next
  int shift = 0;                                 // a number takes 1 << shift bytes
};

struct DecodeShape {
  int64_t heads;          // kv heads of the item
  int64_t group;          // query heads of each
  int64_t D, Dv;          // widths of a key and of a value
  int64_t k_head_stride;  // bytes from one kv head of a key to the next
  int64_t v_head_stride;
  bool shared;            // the value is the first part of its key
  bool accurate = false;  // weights are not rounded to bf16 before they meet the values
  CodeShape codes{};
};

// How scores become exponents of 2: z = score * scale, or cap * tanh(score * scale / cap), and slope * (key -
// position) more; the exponent is z * log2(e). A kv head may have a factor of its own beside the scale.
struct Scaling {
  float scale;
  float cap;                       // 0: none
  const float* slopes = nullptr;   // of the item's query heads, or null
  int64_t position = 0;            // of the row, counted as the item's keys are
  const float* factors = nullptr;  // of the item's kv heads, factor_stride apart, or null
  int64_t factor_stride = 0;
  // Before the softmax, which then has no factor of its own.
  KP_INLINE bool settles() const { return cap > 0 || slopes || factors || scale > kMostFactor; }
  KP_INLINE float factor() const { return settles() ? kLog2E : scale * kLog2E; }
};

// Rows that are fetched while others are multiplied, a few lines at a time. All of a head's at once took decode
// with four query heads a kv head 1.4 to 1.7 times as long on an AMD EPYC (Zen 4).
struct Following {
  const char* const* rows = nullptr;
  int64_t keys = 0, offset = 0;
  int shift = 0;  // rows of codes: one for 1 << shift bytes of numbers, which fetch() counts

  // Bytes [from, until) of row j, to the second-level cache (2) or the first (3).
  template <int kLevel>
  KP_INLINE void fetch(int64_t j, int64_t from, int64_t until) const {
    if (j >= keys) return;
    for (int64_t i = from >> shift; i < until >> shift; i += 64)
      __builtin_prefetch(rows[j] + offset + i, 0, kLevel);
  }

  // Without a branch, for loops over a row's parts: row j, or `own`, which is read anyway, where nothing follows.
  KP_INLINE const char* row(int64_t j, const char* own) const { return j < keys ? rows[j] + offset : own; }
  template <int kLevel, int kBytes>
  KP_INLINE void fetch_part(const char* row, int64_t from) const {
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(row + ((from + i) >> shift), 0, kLevel);
  }
};

// Up to kMostBlockKeys keys: the addresses of their rows at the item's first kv head.
struct KeyBlock {
  int64_t keys;
  const char* k[kMostBlockKeys];
  const char* v[kMostBlockKeys];
  const KeyBlock* ahead;  // the next block, to be prefetched meanwhile, or null

  // Those of the head behind h, or of the first one in the next block; kRows is k or v. Of codes, those of head h in the
  // next block: the rows of this one were made just now.
  template <const char* (KeyBlock::*kRows)[kMostBlockKeys]>
  KP_INLINE Following behind_head(const DecodeShape& shape, int64_t h) const {
    if (shape.codes.row_bytes) return in_next_block<kRows>(shape, h);
    if (h + 1 == shape.heads) return in_next_block<kRows>(shape, 0);
    return {this->*kRows, keys, (h + 1) * head_stride<kRows>(shape)};
  }
  // Those of head h in the next block.
  template <const char* (KeyBlock::*kRows)[kMostBlockKeys]>
  KP_INLINE Following in_next_block(const DecodeShape& shape, int64_t h) const {
    if (!ahead) return {};
    const CodeShape& codes = shape.codes;
    if (codes.row_bytes) return {ahead->*kRows, ahead->keys, h * head_stride<kRows>(codes), codes.shift};
    return {ahead->*kRows, ahead->keys, h * head_stride<kRows>(shape)};
  }
  template <const char* (KeyBlock::*kRows)[kMostBlockKeys], class Shape>
  KP_INLINE static int64_t head_stride(const Shape& shape) {
    return kRows == &KeyBlock::k ? shape.k_head_stride : shape.v_head_stride;
  }

  // What is left of the last tile of keys has the rows of the last key, so that groups of keys are read whole.
  KP_INLINE void repeat_last_key() {
    for (int64_t j = keys; j < round_up(keys, kTileKeys); ++j) {
      k[j] = k[keys - 1];
      v[j] = v[keys - 1];
    }
  }
};

// What an item's kernel is asked, `self` first. Elements are of the item's dtype.
struct DecodeSource {
  const void* self;
  // Dense rows of `width` elements, kv head after kv head, zero past D.
  void (*queries)(const void* self, void* to, int64_t width);
  // The addresses of block.keys keys from key `first` of the request on.
  void (*rows)(const void* self, int64_t first, KeyBlock& block);
  // Query head g of kv head h: sums of weights times values, of which `sum` is the sum of weights, relative to
  // the score `top`.
  void (*result)(const void* self, int64_t h, int64_t g, const float* sums, float top, float sum);
  // The rows there, of codes, become rows of numbers in `room`, of codes.row_bytes for each key.
  void (*widen)(const void* self, KeyBlock& block, char* room) = nullptr;
};

struct DecodeItemArguments {
  Dtype dtype;  // of queries, keys and values
  const DecodeShape& shape;
  const Scaling& scaling;
  int64_t first, last;  // keys of the request
  int64_t slot_stride;  // bytes between the keys of consecutive slots
  const DecodeSource& source;
};
KP_KERNEL(_decode_item, DecodeItemArguments);

}  // namespace kernelpair
