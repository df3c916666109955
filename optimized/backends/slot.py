"""Attention over slot pools: extend_attention and decode_attention on the request table as it is."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from optimized.backends.common import PAD_SLOT, check_all, check_call, lengths, store
from optimized.operators import operator
from optimized.workspace import Workspace
from serving import DECODE_MODES, AttentionLayer, ForwardBatch, KVPool, check_layers, check_stored, prepared

SPLIT_KEYS = 256  # keys of a split: fewer would cost more in merging than they gain in balance
MOST_SPLITS = 16
EMPTY = {"total": 0, "new": 0, "pool": 0, "encoder": 0, "loc": PAD_SLOT}  # what a padded request has in the static buffers


class SlotBackend:
    """Self, cross and latent attention over slots. Replayed steps read lengths and rows from static buffers of their size."""

    def __init__(
        self, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], req_to_token: Tensor, *, max_bs: int = 0
    ) -> None:
        check_layers("slot", layers, pools)
        self.pools, self.req_to_token, self.max_bs = pools, req_to_token, max_bs
        self.slots = min((len(pool.k) for pool in pools.values()), default=0)
        self.workspace = Workspace()
        self._static: dict[int, dict[str, Tensor]] = {}
        self._given: dict[str, Tensor | None] = {}
        self._splits = 1

    def prepare(self, batch: ForwardBatch) -> None:
        """Lengths and rows of a batch, before its first layer runs. ValueError, TypeError, IndexError."""
        check_all(batch, self.req_to_token, self.slots, 1, self.max_bs)
        total, new = lengths(batch)
        loc = batch.out_cache_loc if batch.mode in DECODE_MODES else None
        given = {"total": total, "new": new, "pool": batch.req_pool_indices, "encoder": batch.encoder_lens, "loc": loc}
        self._given = given if batch.padded_size is None else self._replay(batch.padded_size, given)
        longest = int(total.max()) if batch.size else 0
        if batch.encoder_lens is not None and batch.size:
            longest = max(longest, int(batch.encoder_lens.max()))
        if batch.padded_size is not None:
            longest = self.req_to_token.shape[1]  # a recorded step has one number of splits for all its replays
        self._splits = max(1, min(MOST_SPLITS, longest // SPLIT_KEYS))

    def _replay(self, rows: int, given: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """The static buffers of this size, refreshed: padded requests have no keys and no rows, and the pad as their slot."""
        static = self._static.setdefault(rows, {name: torch.zeros(rows, dtype=torch.int64) for name in EMPTY})
        for name, buffer in static.items():
            value = given[name]
            live = 0 if value is None else min(len(value), rows)  # a location of another length is refused by each layer
            if value is not None:
                buffer[:live] = value[:live]
            buffer[live:] = EMPTY[name]
        return {name: buffer if given[name] is not None else None for name, buffer in static.items()}

    def forward_extend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [tokens, heads, v_head_dim] of all new tokens; the new keys are read from k and v, not from the pool."""
        pool, meta = self.pools[layer.layer_id], prepared(self._given)
        new = check_call(q, k, v, layer, pool, batch, save_kv_cache)
        if layer.is_cross:
            if new is not None:
                store(pool, layer, *new)
            k = v = None
        out = q.new_zeros(len(q), layer.heads, layer.v_head_dim)
        extends = meta["new"]
        assert extends is not None
        operator("extend_attention")(
            q, k, v, out, pool.k, pool.v, self.req_to_token, meta["pool"], meta["total"], extends, extends.cumsum(0) - extends,
            meta["encoder"], layer.sinks, layer.sm_scale, layer.logit_cap, _window(layer), layer.is_cross,
        )
        if new is not None and not layer.is_cross:
            store(pool, layer, *new)
        return out

    def forward_decode(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: AttentionLayer, batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> Tensor:  # fmt: skip
        """Attention [rows, heads, v_head_dim] of one token a request, whose key is in the pool before it is read."""
        pool, meta = self.pools[layer.layer_id], prepared(self._given)
        new = check_call(q, k, v, layer, pool, batch, save_kv_cache)
        fused = new is not None and not layer.is_cross  # the kernel writes one key a row
        if new is not None and fused:
            check_stored(layer, pool, *new[:2])
        elif new is not None:
            store(pool, layer, *new)
        out = q.new_zeros(len(q), layer.heads, layer.v_head_dim)
        operator("decode_attention")(
            q, pool.k, pool.v, out, k if fused else None, v if fused and not layer.latent else None,
            meta["loc"] if fused else None, self._logits(len(q), layer), self.req_to_token, meta["pool"], meta["total"],
            meta["encoder"], layer.sinks, layer.sm_scale, layer.logit_cap, _window(layer), layer.is_cross,
            PAD_SLOT if fused else None,
        )
        return out

    def _logits(self, rows: int, layer: AttentionLayer) -> Tensor:
        """Scratch of the splits in this layer's own shape, dense."""
        shape = (rows, layer.heads, self._splits, layer.v_head_dim + 1)
        size = rows * layer.heads * self._splits * (layer.v_head_dim + 1)
        return self.workspace.get(4 * size).view(torch.float32).view(shape)


def _window(layer: AttentionLayer) -> int:
    """The kernels count the query's own key as well, and take 0 for no window."""
    return layer.sliding_window + 1
