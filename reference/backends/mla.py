"""Decoding of absorbed MLA over pages of latents: mla_decode. It cannot prefill."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reference.attention_metadata import build_attention_metadata
from reference.backends.common import check_lengths, check_static_lengths, padded, store, tokens_with_pads
from reference.mla_decode import PAGE_SIZES, mla_decode, mla_decode_workspace_size
from serving import (
    AttentionLayer,
    AttentionMetadata,
    DecodesOnly,
    ForwardBatch,
    KVPool,
    check_keys,
    check_layers,
    check_queries,
    prepared,
)


class MlaBackend(DecodesOnly):
    """One token a request over rows [latent | rope]; q is [rows, heads, latent + rope]."""

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, page_size: int = 64,
        max_bs: int = 0, max_context_len: int = 0,
    ) -> None:  # fmt: skip
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size {page_size} is none of {', '.join(map(str, PAGE_SIZES))}")
        check_layers("mla", layers, pools, page_size)
        self.pools, self.req_to_token, self.page_size, self.max_bs = pools, req_to_token, page_size, max_bs
        self.max_context_len = max_context_len
        self.meta: AttentionMetadata | None = None

    def prepare(self, batch: ForwardBatch) -> None:
        """Build the page table of a batch before its first layer runs. ValueError, TypeError, IndexError."""
        if batch.mode not in ("idle", "decode"):
            raise ValueError(f"mode {batch.mode!r}: the mla backend decodes only")
        slots = min((len(pool.k) for pool in self.pools.values()), default=0)
        check_lengths(batch, self.req_to_token, slots, self.page_size)
        if batch.padded_size is not None and batch.padded_size > self.max_bs:
            raise ValueError(f"padded_size {batch.padded_size} is more than max_bs {self.max_bs}")
        check_static_lengths(replace(batch, encoder_lens=None), 0, self.max_context_len, 0)
        table = self.req_to_token
        self.meta = build_attention_metadata(
            batch.mode, batch.seq_lens, batch.req_pool_indices, table, page_size=self.page_size
        )

    def forward_decode(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [rows, heads, latent] of one token a request."""
        meta = prepared(self.meta)
        pool = self.pools[layer.layer_id]
        check_queries(q, layer, pool, tokens_with_pads(batch))
        given = check_keys(k, v, layer, batch.rows, batch.out_cache_loc, batch.size, "out_cache_loc")
        if given and save_kv_cache:
            assert k is not None and v is not None
            store(pool, layer, k, v, batch.out_cache_loc, "out_cache_loc")
        longest = meta.max_seq_len_k
        size = mla_decode_workspace_size(longest, batch.size, layer.heads, self.page_size, layer.v_head_dim)
        latent, rope = q[: batch.size].split([layer.v_head_dim, layer.head_dim - layer.v_head_dim], dim=-1)
        pages = pool.k[:, 0].unflatten(0, (-1, self.page_size))
        scratch = torch.zeros(size, dtype=torch.uint8)
        return padded(
            mla_decode(latent, rope, pages, meta.cache_seqlens, meta.page_table, scratch, layer.sm_scale), len(q)
        )
