"""Latent attention (MLA) in the form that suits a batch: expanded where nothing is cached yet, else absorbed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optimized.backends.common import row_counts, store
from optimized.operators import operator
from serving import DECODE_MODES, AttentionLayer, ForwardBatch, MlaProjections, check_latent_call, check_projections, mla_form


class LatentAttention:
    """Queries of whole heads in, values of whole heads out; what is cached are the latents, in either form.

    `prefill` and `decode` are backends that serve the layers absorbed. The caller prepares them for each batch.
    """

    def __init__(self, prefill: Any, decode: Any, layers: Mapping[int, tuple[AttentionLayer, MlaProjections]]) -> None:
        for layer, up in layers.values():
            check_projections(layer, up)
        self.prefill, self.decode, self.layers = prefill, decode, layers

    def forward(self, q: Tensor, rows: Tensor, layer: AttentionLayer, batch: ForwardBatch, save_kv_cache: bool = True) -> Tensor:
        """[tokens, heads, value width]; q [tokens, heads, key width with rope], rows [tokens, 1, latent + rope]. ValueError."""
        _, up = self.layers[layer.layer_id]
        live, tokens = row_counts(batch)
        check_latent_call(q, rows, layer, up, tokens, batch.out_cache_loc, live)
        nope = up.up_k.shape[1]
        if mla_form(batch) == "expanded":
            return self._expanded(q, rows, layer, up, batch, save_kv_cache)
        absorbed = torch.cat([_by_head(q[..., :nope], up.up_k), q[..., nope:]], dim=-1)
        latents = rows[..., : layer.v_head_dim]
        decodes = batch.mode in DECODE_MODES
        forward = self.decode.forward_decode if decodes else self.prefill.forward_extend
        out = forward(absorbed, rows, latents, layer, batch, save_kv_cache=save_kv_cache)
        return _by_head(out, up.up_v.transpose(1, 2))

    def _expanded(
        self, q: Tensor, rows: Tensor, layer: AttentionLayer, up: MlaProjections, batch: ForwardBatch, save: bool
    ) -> Tensor:
        """Keys and values of each head are made and attended, and the latents stored; the pool is not read."""
        if save and batch.out_cache_loc is None:
            raise ValueError(f"out_cache_loc must be given to store the keys of layer {layer.layer_id}")
        latents, rope = rows.tensor_split([layer.v_head_dim], dim=-1)
        each = latents.expand(-1, layer.heads, -1)
        k = torch.cat([_by_head(each, up.up_k.transpose(1, 2)), rope.expand(-1, layer.heads, -1)], dim=-1)
        v = _by_head(each, up.up_v.transpose(1, 2))
        out, pool, new = torch.zeros_like(v), self.prefill.pools[layer.layer_id], batch.extend_seq_lens
        assert new is not None
        operator("extend_attention")(
            q, k, v, out, pool.k, pool.v, self.prefill.req_to_token, batch.req_pool_indices, batch.seq_lens, new,
            new.cumsum(0) - new, None, layer.sinks, layer.sm_scale, layer.logit_cap, layer.sliding_window + 1, False,
        )
        if save and batch.out_cache_loc is not None:
            store(pool, layer, rows, rows, batch.out_cache_loc)
        return out


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """[tokens, heads, n] times each head's [n, m]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1).contiguous()
