// int4_from_gptq and int4_from_awq: eight codes of four bits out of each int32, as published weights hold them. A
// weight passes here once in its life.
#include "kernels/int4_codes.h"

#include "core/integers.h"
#include "core/parallel.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kWordCodes = 8;                                // codes of a word
constexpr int64_t kGrainElements = 1 << 16;                      // 60 us: what waking a thread costs
constexpr int kAwqOrder[kWordCodes] = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble -> column of its word

// Bit 31 is data as any other: the shift is unsigned.
KP_INLINE uint8_t nibble(const View& words, int64_t i, int64_t j, int place) {
  return *at<uint32_t>(words, i, j) >> 4 * place & 15;
}

// Words [rows, columns of eight] to `to` [outputs, rows]: nibble i of a word is output kOrder[i] of its eight.
template <class Order>
void transpose_words(const View& words, const View& to, int64_t offset, const Order& order) {
  const int64_t rows = to.sizes[1];
  parallel_for(words.sizes[1], kGrainElements / (kWordCodes * rows + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t word = begin; word < end; ++word)
      for (int64_t row = 0; row < rows; ++row)
        for (int i = 0; i < kWordCodes; ++i)
          *at<uint8_t>(to, word * kWordCodes + order(i), row) =
              static_cast<uint8_t>(nibble(words, row, word, i) + offset);
  });
}

}  // namespace

void int4_from_gptq(const Int4CodesArguments& call) {
  const int64_t N = call.codes.sizes[0], K = call.codes.sizes[1];
  parallel_for(N, kGrainElements / K + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t k = 0; k < K; ++k)
        *at<uint8_t>(call.codes, n, k) =
            nibble(call.qweight, k / kWordCodes, n, static_cast<int>(k % kWordCodes));
  });
  transpose_words(call.qzeros, call.zeros, call.zero_offset, [](int i) { return i; });
}

void int4_from_awq(const Int4CodesArguments& call) {
  const auto order = [](int i) { return kAwqOrder[i]; };
  transpose_words(call.qweight, call.codes, 0, order);
  transpose_words(call.qzeros, call.zeros, call.zero_offset, order);
}

}  // namespace kernelpair::KP_TIER
