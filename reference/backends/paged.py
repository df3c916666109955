"""Attention over paged caches: keys are stored, then paged_attention reads them through the metadata of the batch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reference import checks
from reference.attention_metadata import build_attention_metadata
from reference.backends.common import (
    FLOAT8_LIMIT,
    check_lengths,
    check_static_lengths,
    location,
    new_lengths,
    padded,
    store,
    tokens_with_pads,
)
from reference.paged_attention import paged_attention
from serving import (
    AttentionLayer,
    AttentionMetadata,
    ForwardBatch,
    KVPool,
    check_chunked,
    check_keys,
    check_layers,
    check_queries,
    check_static_drafts,
    prepared,
)


class PagedBackend:
    """Self, cross, latent and chunked local attention over pages; the metadata is built anew for each batch."""

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, page_size: int = 1,
        attn_chunk_size: int | None = None, max_bs: int = 0, max_context_len: int = 0, max_encoder_len: int = 0,
        num_draft_tokens: int = 0,
    ) -> None:  # fmt: skip
        check_layers("paged", layers, pools, page_size)
        check_chunked(layers, attn_chunk_size)
        self.pools, self.req_to_token, self.page_size = pools, req_to_token, page_size
        self.attn_chunk_size, self.max_bs, self.num_draft_tokens = attn_chunk_size, max_bs, num_draft_tokens
        self.max_context_len, self.max_encoder_len = max_context_len, max_encoder_len
        self.meta: AttentionMetadata | None = None

    def prepare(self, batch: ForwardBatch) -> None:
        """Build the metadata of a batch before its first layer runs. ValueError, TypeError, IndexError."""
        slots = min((len(pool.k) for pool in self.pools.values()), default=0)
        check_lengths(batch, self.req_to_token, slots, self.page_size)
        if batch.padded_size is not None and batch.padded_size > self.max_bs:
            raise ValueError(f"padded_size {batch.padded_size} is more than max_bs {self.max_bs}")
        check_static_drafts(batch, self.num_draft_tokens)
        check_static_lengths(batch, self.num_draft_tokens, self.max_context_len, self.max_encoder_len)
        self.meta = build_attention_metadata(
            batch.mode, batch.seq_lens, batch.req_pool_indices, self.req_to_token, page_size=self.page_size,
            extend_seq_lens=batch.extend_seq_lens, encoder_lens=batch.encoder_lens, num_draft_tokens=batch.num_draft_tokens,
            speculative_step_id=batch.speculative_step_id, attn_chunk_size=self.attn_chunk_size,
        )

    def forward_extend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [tokens, heads, v_head_dim] of all new tokens, whose keys are in the pool before they are read."""
        meta = prepared(self.meta)
        tokens, live = tokens_with_pads(batch), int(new_lengths(batch).sum())
        pool = self.pools[layer.layer_id]
        check_queries(q, layer, pool, tokens, checks.FLOAT_DTYPES)
        name, loc = location(layer, batch)
        if layer.is_cross:
            tokens = 0 if loc is None else len(loc)
        if layer.is_cross and meta.encoder_lens is None:
            raise ValueError("encoder_lens is None, but cross attention needs the encoder's lengths")
        given = check_keys(k, v, layer, tokens, loc, tokens if layer.is_cross else live, name)
        if given and save_kv_cache:
            assert k is not None and v is not None
            store(pool, layer, k, v, loc, name)
        pages = [cache.unflatten(0, (-1, self.page_size)) for cache in (pool.k, pool.v)]
        table, lengths, offsets = _keys_of(layer, meta)
        k_descale, v_descale = _descales(layer, pool, q.dtype, len(lengths))
        queries, latent_queries = q[:live], None
        if layer.latent and layer.v_head_dim < layer.head_dim:  # without a rope part the latents are ordinary keys
            latent_queries, queries = queries[..., : layer.v_head_dim], queries[..., layer.v_head_dim :]
            pages[0] = pages[0][..., layer.v_head_dim :]
        out = paged_attention(
            queries, pages[0], pages[1], table, lengths, offsets, latent_queries, k_descale=k_descale, v_descale=v_descale,
            sinks=layer.sinks, softmax_scale=layer.sm_scale, causal=not layer.is_cross, window_left=layer.sliding_window,
            softcap=layer.logit_cap,
        )
        return padded(out, len(q))

    forward_decode = forward_extend  # one token a request is no case of its own


def _keys_of(layer: AttentionLayer, meta: AttentionMetadata) -> tuple[Tensor, Tensor, Tensor]:
    """Page table, lengths and query offsets of what this layer's queries attend."""
    if layer.is_cross:
        assert meta.encoder_page_table is not None and meta.encoder_lens is not None
        return meta.encoder_page_table, meta.encoder_lens, meta.cu_seqlens_q
    if layer.local:
        assert meta.local is not None
        return meta.local.block_table, meta.local.seqlens_k, meta.local.cu_seqlens_q
    return meta.page_table, meta.cache_seqlens, meta.cu_seqlens_q


def _descales(layer: AttentionLayer, pool: KVPool, dtype: torch.dtype, sequences: int) -> list[Tensor | None]:
    """The layer's scales, one row for each sequence of the call."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    shape = (sequences, layer.kv_heads)
    scales = (layer.k_scale, layer.v_scale) if pool.k.dtype in FLOAT8_LIMIT else (None, None)
    return [None if scale is None else torch.full(shape, scale, dtype=torch.float32).to(wide) for scale in scales]
