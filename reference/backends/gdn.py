"""Gated-delta-net layers over pools of recurrent state: gdn_attention_core."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reference.backends.common import new_lengths, padded, tokens_with_pads, total_lengths
from reference.gdn_attention_core import gdn_attention_core
from serving import DECODE_MODES, ForwardBatch, GdnLayer, GdnMetadata, StatePool, check_batch, prepared

PAD = -1


class GdnBackend:
    """mixed_qkv, a and b stand where attention has q, k and v. A verified draft does not touch the state: it is run again,
    as far as it was accepted."""

    def __init__(self, layers: Sequence[GdnLayer], pools: Mapping[int, StatePool]) -> None:
        for layer in layers:
            if layer.layer_id not in pools:
                raise ValueError(f"pools: there is none for layer {layer.layer_id}")
        self.pools = pools
        self._prepared = False

    def prepare(self, batch: ForwardBatch) -> None:
        """Check a batch before its first layer runs. ValueError, TypeError, IndexError."""
        check_batch(batch)
        if batch.state_indices is None:
            raise ValueError("state_indices must be given for recurrent layers")
        slots = min((len(states) for pool in self.pools.values() for states in (pool.conv, pool.ssm)), default=0)
        used = batch.state_indices
        if len(used) and not (int(used.min()) >= 0 and int(used.max()) < slots):
            raise IndexError(f"state_indices holds a slot outside [0, {slots})")
        if len(used.unique()) < len(used):
            raise ValueError("state_indices holds a slot more than once")
        self._prepared = True

    def forward_extend(
        self, mixed_qkv: Tensor, a: Tensor, b: Tensor, layer: GdnLayer, batch: ForwardBatch, save_kv_cache: bool = True
    ) -> Tensor:
        """Outputs [tokens, num_v_heads, head_v_dim]; without save_kv_cache the states stay as they were."""
        prepared(self._prepared)
        decodes = batch.size if batch.mode in DECODE_MODES else batch.num_decodes
        rows = tokens_with_pads(batch)
        for name, value in (("mixed_qkv", mixed_qkv), ("a", a), ("b", b)):
            if len(value) != rows:
                raise ValueError(f"{name} must have {rows} rows in layer {layer.layer_id}, got {len(value)}")
        new = new_lengths(batch)
        live, pool = int(new.sum()), self.pools[layer.layer_id]
        assert batch.state_indices is not None
        metadata = GdnMetadata(
            num_decodes=decodes,
            num_decode_tokens=decodes,
            num_prefills=batch.size - decodes,
            num_prefill_tokens=live - decodes,
            num_actual_tokens=live,
            state_indices=batch.state_indices,
            query_start_loc=torch.cat([torch.zeros(1, dtype=new.dtype), new.cumsum(0)]),
            has_initial_state=total_lengths(batch) > new,
            pad_slot=PAD,
        )
        out = mixed_qkv.new_zeros(live, layer.num_v_heads, layer.head_v_dim)
        conv, ssm = (pool.conv, pool.ssm) if save_kv_cache else (pool.conv.clone(), pool.ssm.clone())
        gdn_attention_core(
            mixed_qkv[:live], a[:live], b[:live], out, conv, ssm, layer.conv_weight, layer.conv_bias, layer.A_log, layer.dt_bias,
            metadata, num_k_heads=layer.num_k_heads, head_k_dim=layer.head_k_dim, num_v_heads=layer.num_v_heads,
            head_v_dim=layer.head_v_dim, conv_layout=pool.conv_layout, state_layout=pool.state_layout,
            use_qk_l2norm=layer.use_qk_l2norm, eps=layer.eps,
        )
        return padded(out, rows)

    forward_decode = forward_extend  # the mode says which requests decode
