"""Attention over slot pools: extend_attention and decode_attention, with the request table as it is."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reference.backends.common import (
    check_lengths,
    location,
    new_lengths,
    padded,
    store,
    tokens_with_pads,
    total_lengths,
)
from reference.decode_attention import decode_attention
from reference.extend_attention import extend_attention
from serving import AttentionLayer, ForwardBatch, KVPool, check_keys, check_layers, check_queries, prepared


class SlotBackend:
    """Self, cross and latent attention over slots; of a batch nothing is kept but that there was one."""

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, max_bs: int = 0
    ) -> None:
        check_layers("slot", layers, pools)
        self.pools, self.req_to_token, self.max_bs = pools, req_to_token, max_bs
        self._prepared = False

    def prepare(self, batch: ForwardBatch) -> None:
        """Check a batch before its first layer runs. ValueError, TypeError, IndexError."""
        slots = min((len(pool.k) for pool in self.pools.values()), default=0)
        check_lengths(batch, self.req_to_token, slots, 1)
        if batch.padded_size is not None and batch.padded_size > self.max_bs:
            raise ValueError(f"padded_size {batch.padded_size} is more than max_bs {self.max_bs}")
        self._prepared = True

    def forward_extend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [tokens, heads, v_head_dim] of all new tokens; the new keys are read from k and v, not from the pool."""
        self._check(q, k, v, layer, batch, save_kv_cache)
        new, pool = new_lengths(batch), self.pools[layer.layer_id]
        live = int(new.sum())
        if layer.is_cross and k is not None and v is not None and save_kv_cache:
            store(pool, layer, k, v, batch.encoder_out_cache_loc, "encoder_out_cache_loc")
        out = q.new_zeros(live, layer.heads, layer.v_head_dim)
        extend_attention(
            q[:live], None if k is None else k[:live], None if v is None else v[:live], out, pool.k, pool.v, self.req_to_token,
            batch.req_pool_indices, total_lengths(batch), new, new.cumsum(0) - new, batch.encoder_lens, layer.sinks,
            layer.sm_scale, layer.logit_cap, layer.sliding_window + 1, layer.is_cross,
        )
        if not layer.is_cross and k is not None and v is not None and save_kv_cache:
            store(pool, layer, k, v, batch.out_cache_loc, "out_cache_loc")
        return padded(out, len(q))

    def forward_decode(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [rows, heads, v_head_dim] of one token a request, whose key is in the pool before it is read."""
        self._check(q, k, v, layer, batch, save_kv_cache)
        pool = self.pools[layer.layer_id]
        if k is not None and v is not None and save_kv_cache:
            name, loc = location(layer, batch)
            store(pool, layer, k, v, loc, name)
        out = q.new_zeros(batch.size, layer.heads, layer.v_head_dim)
        logits = torch.zeros(batch.size, layer.heads, 1, layer.v_head_dim + 1)
        decode_attention(
            q[: batch.size], pool.k, pool.v, out, None, None, None, logits, self.req_to_token, batch.req_pool_indices,
            total_lengths(batch), batch.encoder_lens, layer.sinks, layer.sm_scale, layer.logit_cap, layer.sliding_window + 1,
            layer.is_cross,
        )
        return padded(out, len(q))

    def _check(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch, save_kv_cache: bool
    ) -> None:
        prepared(self._prepared)
        tokens = tokens_with_pads(batch)
        check_queries(q, layer, self.pools[layer.layer_id], tokens)
        name, loc = location(layer, batch)
        live = int(new_lengths(batch).sum())
        if layer.is_cross and batch.encoder_lens is None:
            raise ValueError("encoder_lens is None, but cross attention needs the encoder's lengths")
        if layer.is_cross:
            live = tokens = 0 if loc is None else len(loc)
        if check_keys(k, v, layer, tokens, loc, live, name) and save_kv_cache and loc is None:
            raise ValueError(f"{name} must be given to store the keys of layer {layer.layer_id}")
