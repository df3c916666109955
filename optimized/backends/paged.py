"""Attention over paged caches: keys are stored, then paged_attention reads them through the metadata of the batch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from optimized.attention_metadata import (
    MetadataBuffers,
    MultiStepMetadata,
    build_attention_metadata,
)
from optimized.backends.common import LARGEST, StaticLocations, check_all, check_call, store
from optimized.paged_attention import paged_attention
from serving import (
    AttentionLayer,
    AttentionMetadata,
    ForwardBatch,
    KVPool,
    check_chunked,
    check_layers,
    check_static_drafts,
    prepared,
)


class PagedBackend:
    """Self, cross, latent and chunked local attention over pages.

    The metadata of a batch is built anew, or, where the batch has a padded_size, replayed into buffers that a graph may record.
    Those of all steps of a draft are refreshed together, at its first step, or at a later one if there was none since they were
    captured. Drafts of different sizes keep theirs apart.
    """

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, page_size: int = 1,
        attn_chunk_size: int | None = None, max_bs: int = 0, max_context_len: int = 0, max_encoder_len: int = 0,
        num_draft_tokens: int = 0,
    ) -> None:  # fmt: skip
        check_layers("paged", layers, pools, page_size)
        check_chunked(layers, attn_chunk_size)
        self.pools, self.req_to_token, self.page_size = pools, req_to_token, page_size
        self.attn_chunk_size, self.max_bs, self.num_draft_tokens = attn_chunk_size, max_bs, num_draft_tokens
        self.slots = min((len(pool.k) for pool in pools.values()), default=0)
        sizes = {"page_size": page_size, "attn_chunk_size": attn_chunk_size, "max_encoder_len": max_encoder_len}
        self._buffers = MetadataBuffers(max_bs, max_context_len, num_draft_tokens=num_draft_tokens, **sizes)  # type: ignore[arg-type]
        self._drafts = MultiStepMetadata(max(num_draft_tokens, 1), max_bs, max_context_len, **sizes)  # type: ignore[arg-type]
        self._captured: set[tuple[str, int]] = set()
        self._locations, self._loc = StaticLocations(), None  # type: StaticLocations, Tensor | None
        self._draft: dict[int, list[AttentionMetadata]] = {}
        """Size of a draft that goes on -> the metadata of its steps."""
        self.meta: AttentionMetadata | None = None

    def capture(self, mode: str, bs: int) -> None:
        """Make, or reset, the static buffers of a mode and size. ValueError where it has no static form."""
        if mode == "draft_decode":
            self._drafts.capture(bs)
            self._draft.pop(bs, None)
        else:
            self._buffers.capture(mode, bs)
        self._captured.add((mode, bs))

    def prepare(self, batch: ForwardBatch) -> None:
        """The metadata of a batch, before its first layer runs. ValueError, TypeError, IndexError."""
        check_all(batch, self.req_to_token, self.slots, self.page_size, self.max_bs)
        check_static_drafts(batch, self.num_draft_tokens)
        if batch.padded_size is None:
            self.meta = build_attention_metadata(
                batch.mode, batch.seq_lens, batch.req_pool_indices, self.req_to_token, page_size=self.page_size,
                extend_seq_lens=batch.extend_seq_lens, encoder_lens=batch.encoder_lens,
                num_draft_tokens=batch.num_draft_tokens, speculative_step_id=batch.speculative_step_id,
                attn_chunk_size=self.attn_chunk_size,
            )
            self._loc = None
            return
        if (batch.mode, batch.padded_size) not in self._captured:
            self.capture(batch.mode, batch.padded_size)
        given = batch.seq_lens, batch.req_pool_indices, self.req_to_token, batch.encoder_lens
        if batch.mode == "draft_decode":
            self.meta = self._steps(batch.padded_size, batch, given)[batch.speculative_step_id]
        else:
            self.meta = self._buffers.replay(batch.mode, batch.padded_size, *given)
        self._loc = self._locations.replay(batch)  # last: a batch that is refused leaves the slots of the one before

    def _steps(
        self, size: int, batch: ForwardBatch, given: tuple[Tensor, Tensor, Tensor, Tensor | None]
    ) -> list[AttentionMetadata]:
        """The metadata of a draft's steps; a batch without requests, such as one that is recorded, begins no draft."""
        if batch.speculative_step_id and size in self._draft:
            return self._draft[size]
        steps = self._drafts.replay(size, *given)
        if batch.size:
            self._draft[size] = steps
        else:
            self._draft.pop(size, None)
        return steps

    def forward_extend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [tokens, heads, v_head_dim] of all new tokens, whose keys are in the pool before they are read."""
        meta = prepared(self.meta)
        pool = self.pools[layer.layer_id]
        new = check_call(q, k, v, layer, pool, batch, save_kv_cache)
        if new is not None:
            k, v, loc = new
            store(pool, layer, k, v, loc if self._loc is None or layer.is_cross else self._loc)
        table, keys, offsets = self._keys(layer, meta)
        k_descale, v_descale = _descales(layer, pool, len(keys))
        qv, k_cache = None, pool.k
        if layer.latent and layer.v_head_dim < layer.head_dim:  # rope parts are the kernel's q and keys, latents qv and values
            (qv, q), k_cache = q.tensor_split([layer.v_head_dim], dim=-1), k_cache[..., layer.v_head_dim :]
        return paged_attention(
            q, k_cache.unflatten(0, (-1, self.page_size)), pool.v.unflatten(0, (-1, self.page_size)), table, keys, offsets, qv,
            k_descale=k_descale, v_descale=v_descale, sinks=layer.sinks, softmax_scale=layer.sm_scale,
            causal=not layer.is_cross, window_left=layer.sliding_window, softcap=layer.logit_cap,
        )

    forward_decode = forward_extend  # one token a request is no case of its own

    def _keys(self, layer: AttentionLayer, meta: AttentionMetadata) -> tuple[Tensor, Tensor, Tensor]:
        """Page table, lengths and query offsets of what this layer attends."""
        if layer.local:
            assert meta.local is not None
            return meta.local.block_table, meta.local.seqlens_k, meta.local.cu_seqlens_q
        if layer.is_cross:
            if meta.encoder_page_table is None or meta.encoder_lens is None:
                raise ValueError("encoder_lens is None, but cross attention needs the encoder's lengths")
            return meta.encoder_page_table, meta.encoder_lens, meta.cu_seqlens_q
        return meta.page_table, meta.cache_seqlens, meta.cu_seqlens_q


def _descales(layer: AttentionLayer, pool: KVPool, sequences: int) -> list[Tensor | None]:
    """The layer's scales, expanded to the sequences of the call, virtual ones among them."""
    if pool.k.dtype not in LARGEST:
        return [None, None]
    scales = (None if scale is None else torch.tensor(scale, dtype=torch.float32) for scale in (layer.k_scale, layer.v_scale))
    return [None if scale is None else scale.expand(sequences, layer.kv_heads) for scale in scales]
