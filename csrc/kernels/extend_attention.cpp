// extend_attention: the prefill engine over two sources of keys, the cached prefix by slot and the new tokens
// themselves.
#include "kernels/extend_attention.h"

#include "attention/prefill_keys.h"

namespace kernelpair::KP_TIER {
namespace {

struct SlotKeys : ExtendAttentionArguments {
  Sequence sequence(int64_t b) const {
    const int64_t rows = index_at(extend_seq_lens, b), start = index_at(extend_start_loc, b);
    if (is_cross_attn) return {start, rows, index_at(encoder_lens, b), -kUnbounded, kUnbounded};
    const int64_t keys = index_at(seq_lens, b), prefix = keys - rows;
    return {start, rows, keys,
            sliding_window > 0 && sliding_window < kUnbounded ? prefix - sliding_window + 1 : -kUnbounded,
            prefix + 1};
  }

  void locate(int64_t b, int64_t head, int64_t first, int64_t count, const char** keys,
              const char** values) const {
    const int64_t row = index_at(req_pool_indices, b),
                  prefix = is_cross_attn ? kUnbounded : index_at(seq_lens, b) - index_at(extend_seq_lens, b);
    const int64_t offset = !is_cross_attn && encoder_lens.defined ? index_at(encoder_lens, b) : 0,
                  start = index_at(extend_start_loc, b);
    for (int64_t j = 0; j < count; ++j) {
      const bool cached = first + j < prefix;
      const int64_t from =
          cached ? index_at(req_to_token, row, offset + first + j) : start + first + j - prefix;
      keys[j] = at(cached ? k_cache : k, from, head);
      values[j] = at(cached ? v_cache : v, from, head);
    }
  }
};

}  // namespace

void extend_attention(const ExtendAttentionArguments& arguments) {
  const View& keys = arguments.is_cross_attn ? arguments.k_cache : arguments.k;
  const View& values = arguments.is_cross_attn ? arguments.v_cache : arguments.v;
  const SlotKeys source{arguments};
  _prefill({.q = arguments.q,
            .out = arguments.out,
            .sinks = arguments.sinks,
            .requests = arguments.req_pool_indices.sizes[0],
            .kv_heads = keys.sizes[1],
            .width = arguments.q.sizes[2],
            .value_width = values.sizes[2],
            .scale = arguments.sm_scale,
            .cap = arguments.logit_cap,
            .keys = key_source(source, arguments.q.dtype)});
}

}  // namespace kernelpair::KP_TIER
