// paged_attention: the prefill engine over keys in pages.
#include "common/prefill.h"

namespace kernelpair::KP_TIER {
namespace {

struct PageKeys {
  const View &k_cache, &v_cache, &table, &lengths, &offsets, &k_descale, &v_descale;  // descales may be absent
  int64_t left, right;                                                                // -1: no bound
  Dtype dtype;

  KP_INLINE Sequence sequence(int64_t b) const {
    const int64_t start = index_at(offsets, b), rows = index_at(offsets, b + 1) - start, keys = index_at(lengths, b);
    const int64_t position = keys - rows;  // of row 0
    return {start, rows, keys, left >= 0 && left < kUnbounded ? position - left : -kUnbounded,
            right >= 0 && right < kUnbounded ? position + right + 1 : kUnbounded};
  }

  void locate(int64_t b, int64_t head, int64_t first, int64_t count, const char** keys, const char** values) const {
    const int64_t page = k_cache.sizes[1];
    for (int64_t j = 0, column = first / page, slot = first % page; j < count; ++column, slot = 0) {
      const int64_t id = index_at(table, b, column);
      for (; slot < page && j < count; ++slot, ++j) {
        keys[j] = at(k_cache, id, slot, head);
        values[j] = at(v_cache, id, slot, head);
      }
    }
  }

  KP_INLINE static float factor(const View& descale, int64_t b, int64_t head) {
    return descale.defined ? *at<float>(descale, b, head) : 1;
  }
  KP_INLINE float k_scale(int64_t b, int64_t head) const { return factor(k_descale, b, head); }
  KP_INLINE float v_scale(int64_t b, int64_t head) const { return factor(v_descale, b, head); }
};

}  // namespace

void paged_attention(const View& q, const View& k_cache, const View& v_cache, const View& page_table,
                     const View& cache_seqlens, const View& cu_seqlens_q, const View& qv, const View& k_descale,
                     const View& v_descale, const View& sinks, const View& out, double softmax_scale, int64_t window_left,
                     int64_t window_right, double softcap) {
  const PrefillCall call{q, qv, out, sinks, cache_seqlens.sizes[0], k_cache.sizes[2], q.sizes[2], v_cache.sizes[3],
                         static_cast<float>(softmax_scale), static_cast<float>(softcap)};
  const PageKeys source{k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q, k_descale, v_descale, window_left,
                        window_right, k_cache.dtype};
  prefill(call, source);
}

}  // namespace kernelpair::KP_TIER
