// flash_attn_varlen: the prefill engine over keys that lie one after the other, request by request.
#include "kernels/flash_attn_varlen.h"

#include "attention/prefill_keys.h"

namespace kernelpair::KP_TIER {
namespace {

struct PackedKeys : FlashAttnVarlenArguments {
  KP_INLINE bool is_causal(int64_t b) const {
    return causal_requests.defined ? *at<bool>(causal_requests, b) : causal;
  }

  Sequence sequence(int64_t b) const {
    const int64_t start = index_at(cu_seqlens_q, b), rows = index_at(cu_seqlens_q, b + 1) - start;
    const int64_t keys = index_at(cu_seqlens_k, b + 1) - index_at(cu_seqlens_k, b);
    const int64_t position = bottom_right ? keys - rows : 0;  // of row 0
    const int64_t right = is_causal(b) ? 0 : window_right;
    return {start, rows, keys,
            window_left >= 0 && window_left < kUnbounded ? position - window_left : -kUnbounded,
            right >= 0 && right < kUnbounded ? position + right + 1 : kUnbounded};
  }

  void locate(int64_t b, int64_t head, int64_t first, int64_t count, const char** keys,
              const char** values) const {
    const int64_t start = index_at(cu_seqlens_k, b) + first;
    for (int64_t j = 0; j < count; ++j) {
      keys[j] = at(k, start + j, head);
      values[j] = at(v, start + j, head);
    }
  }
};

}  // namespace

void flash_attn_varlen(const FlashAttnVarlenArguments& arguments) {
  const PackedKeys source{arguments};
  _prefill({.q = arguments.q,
            .out = arguments.out,
            .sinks = arguments.sinks,
            .requests = arguments.cu_seqlens_q.sizes[0] - 1,
            .kv_heads = arguments.k.sizes[1],
            .width = arguments.q.sizes[2],
            .value_width = arguments.v.sizes[2],
            .scale = arguments.softmax_scale,
            .cap = arguments.softcap,
            .keys = key_source(source, arguments.q.dtype)});
}

}  // namespace kernelpair::KP_TIER
