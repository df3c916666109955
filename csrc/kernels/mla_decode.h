// What the kernel of mla_decode takes. Contract: docs/contracts/mla_decode.md.
#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace kernelpair {

constexpr int64_t kWorkspacePiece = 256;  // bytes: the pieces of a workspace begin at multiples of it

struct MlaDecodeArguments {
  const View &q_nope, &q_pe;  // [B, H, Dl], [B, H, Dr]
  const View& kv_cache;       // [pages, page, Dl + Dr]
  const View& seq_lens;       // [B]
  const View& page_table;     // [B, columns]
  const View& workspace;      // [bytes] u8
  const View& out;            // [B, H, Dl]
  float sm_scale;
  int64_t splits;  // so many partial results of a request have room in the workspace
  bool literal;    // they are all used, as far as there are keys
  bool accurate;   // weights are not rounded to bf16
};
KP_KERNEL(mla_decode, MlaDecodeArguments);

}  // namespace kernelpair
