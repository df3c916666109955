// extend_attention: the prefill engine over two sources of keys, the cached prefix by slot and the new tokens themselves.
#include "common/prefill.h"

namespace kernelpair::KP_TIER {
namespace {

struct SlotKeys {
  const View &k, &v, &k_cache, &v_cache, &table, &pools, &lengths, &extends, &starts, &encoders;  // k, v, encoders may be absent
  int64_t window;
  bool cross;
  Dtype dtype;

  KP_INLINE Sequence sequence(int64_t b) const {
    const int64_t rows = index_at(extends, b), start = index_at(starts, b);
    if (cross) return {start, rows, index_at(encoders, b), -kUnbounded, kUnbounded};
    const int64_t keys = index_at(lengths, b), prefix = keys - rows;
    return {start, rows, keys, window > 0 && window < kUnbounded ? prefix - window + 1 : -kUnbounded, prefix + 1};
  }

  void locate(int64_t b, int64_t head, int64_t first, int64_t count, const char** keys, const char** values) const {
    const int64_t row = index_at(pools, b), prefix = cross ? kUnbounded : index_at(lengths, b) - index_at(extends, b);
    const int64_t offset = !cross && encoders.defined ? index_at(encoders, b) : 0, start = index_at(starts, b);
    for (int64_t j = 0; j < count; ++j) {
      const bool cached = first + j < prefix;
      const int64_t from = cached ? index_at(table, row, offset + first + j) : start + first + j - prefix;
      keys[j] = at(cached ? k_cache : k, from, head);
      values[j] = at(cached ? v_cache : v, from, head);
    }
  }

  KP_INLINE float k_scale(int64_t, int64_t) const { return 1; }
  KP_INLINE float v_scale(int64_t, int64_t) const { return 1; }
};

}  // namespace

void extend_attention(const View& q, const View& k, const View& v, const View& out, const View& k_cache,
                      const View& v_cache, const View& req_to_token, const View& req_pool_indices, const View& seq_lens,
                      const View& extend_seq_lens, const View& extend_start_loc, const View& encoder_lens,
                      const View& sinks, double sm_scale, double logit_cap, int64_t sliding_window, bool is_cross_attn) {
  const View absent;
  const View &keys = is_cross_attn ? k_cache : k, &values = is_cross_attn ? v_cache : v;
  const PrefillCall call{q, absent, out, sinks, req_pool_indices.sizes[0], keys.sizes[1], q.sizes[2], values.sizes[2],
                         static_cast<float>(sm_scale), static_cast<float>(logit_cap)};
  const SlotKeys source{k, v, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_seq_lens,
                        extend_start_loc, encoder_lens, sliding_window, is_cross_attn, q.dtype};
  prefill(call, source);
}

}  // namespace kernelpair::KP_TIER
