"""Gated-delta-net layers over pools of recurrent state: gdn_attention_core."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from optimized.backends.common import lengths, row_counts
from optimized.gdn_attention_core import gdn_attention_core
from serving import DECODE_MODES, ForwardBatch, GdnLayer, GdnMetadata, StatePool, check_batch, prepared

PAD_SLOT = -1


class GdnBackend:
    """mixed_qkv, a and b stand where attention has q, k and v.

    A draft is verified on copies of its requests' states (save_kv_cache=False), so that a rejected token leaves nothing behind;
    the accepted ones are then run again on the states themselves.
    """

    def __init__(self, layers: Sequence[GdnLayer], pools: Mapping[int, StatePool]) -> None:
        for layer in layers:
            if layer.layer_id not in pools:
                raise ValueError(f"pools: there is none for layer {layer.layer_id}")
        self.pools = pools
        self.slots = min((len(states) for pool in pools.values() for states in (pool.conv, pool.ssm)), default=0)
        self._new = self._offsets = self._indices = torch.zeros(0, dtype=torch.int64)
        self._initial = torch.zeros(0, dtype=torch.bool)
        self._static: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._prepared = False

    def prepare(self, batch: ForwardBatch) -> None:
        """Offsets, slots and flags of a batch, before its first layer runs. ValueError, TypeError, IndexError."""
        check_batch(batch)
        if batch.state_indices is None:
            raise ValueError("state_indices must be given for recurrent layers")
        slots = batch.state_indices.tolist()
        if any(not 0 <= slot < self.slots for slot in slots):
            raise IndexError(f"state_indices holds {slots}, outside [0, {self.slots})")
        if len(set(slots)) < len(slots):
            raise ValueError(f"state_indices holds a slot more than once: {slots}")
        total, new = lengths(batch)
        self._prepared = True
        if batch.padded_size is not None and batch.mode in DECODE_MODES:
            self._replay(batch.padded_size, batch.state_indices)
            return
        pads = batch.rows - batch.size
        each = batch.num_draft_tokens if batch.mode == "target_verify" else 1
        self._new = torch.cat([new, new.new_full((pads,), each)])
        self._offsets = torch.cat([new.new_zeros(1), self._new.cumsum(0)])
        self._indices = torch.cat([batch.state_indices, batch.state_indices.new_full((pads,), PAD_SLOT)])
        self._initial = torch.cat([total > new, torch.zeros(pads, dtype=torch.bool)])

    def _replay(self, rows: int, slots: Tensor) -> None:
        """The static buffers of a decode of this size, of which only the slots change."""
        held = self._static.get(rows)
        if held is None:
            offsets, indices = torch.arange(rows + 1), torch.empty(rows, dtype=torch.int64)
            held = self._static[rows] = offsets, indices, torch.ones(rows, dtype=torch.bool)
        self._offsets, self._indices, self._initial = held
        self._indices[: len(slots)], self._indices[len(slots) :] = slots, PAD_SLOT

    def forward_extend(
        self, mixed_qkv: Tensor, a: Tensor, b: Tensor, layer: GdnLayer, batch: ForwardBatch, save_kv_cache: bool = True
    ) -> Tensor:
        """Outputs [tokens, num_v_heads, head_v_dim]; without save_kv_cache the states stay as they were."""
        prepared(self._prepared)
        decodes = batch.rows if batch.mode in DECODE_MODES else batch.num_decodes
        _, rows = row_counts(batch)
        for name, value in (("mixed_qkv", mixed_qkv), ("a", a), ("b", b)):
            if len(value) != rows:
                raise ValueError(f"{name} must have {rows} rows in layer {layer.layer_id}, got {len(value)}")
        pool, indices = self.pools[layer.layer_id], self._indices
        conv, ssm = pool.conv, pool.ssm
        if not save_kv_cache:
            kept = indices[: batch.size].long()
            conv, ssm = conv[kept], ssm[kept]
            indices = torch.cat([torch.arange(batch.size), indices[batch.size :].long()])
        metadata = GdnMetadata(
            num_decodes=decodes,
            num_decode_tokens=decodes,
            num_prefills=batch.rows - decodes,
            num_prefill_tokens=rows - decodes,
            num_actual_tokens=rows,
            state_indices=indices,
            query_start_loc=self._offsets,
            has_initial_state=self._initial,
            pad_slot=PAD_SLOT,
        )
        out = mixed_qkv.new_zeros(rows, layer.num_v_heads, layer.head_v_dim)
        gdn_attention_core(
            mixed_qkv, a, b, out, conv, ssm, layer.conv_weight, layer.conv_bias, layer.A_log, layer.dt_bias, metadata,
            num_k_heads=layer.num_k_heads, head_k_dim=layer.head_k_dim, num_v_heads=layer.num_v_heads,
            head_v_dim=layer.head_v_dim, conv_layout=pool.conv_layout, state_layout=pool.state_layout,
            use_qk_l2norm=layer.use_qk_l2norm, eps=layer.eps,
        )
        return out

    forward_decode = forward_extend  # the mode says which requests decode
