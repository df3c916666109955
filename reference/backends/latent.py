"""Latent attention (MLA) in the form that suits a batch: expanded where nothing is cached yet, else absorbed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference.backends.common import new_lengths, store, tokens_with_pads
from reference.extend_attention import extend_attention
from serving import DECODE_MODES, AttentionLayer, ForwardBatch, MlaProjections, check_latent_call, check_projections, mla_form


class LatentAttention:
    """Queries of whole heads in, values of whole heads out; `prefill` and `decode` are prepared backends that serve the layers
    absorbed."""

    def __init__(self, prefill: Any, decode: Any, layers: Mapping[int, tuple[AttentionLayer, MlaProjections]]) -> None:
        for layer, up in layers.values():
            check_projections(layer, up)
        self.prefill, self.decode, self.layers = prefill, decode, layers

    def forward(self, q: Tensor, rows: Tensor, layer: AttentionLayer, batch: ForwardBatch, save_kv_cache: bool = True) -> Tensor:
        """[tokens, heads, value width]; q [tokens, heads, key width with rope], rows [tokens, 1, latent + rope]. ValueError."""
        _, up = self.layers[layer.layer_id]
        live = int(new_lengths(batch).sum())
        check_latent_call(q, rows, layer, up, tokens_with_pads(batch), batch.out_cache_loc, live)
        wide = torch.promote_types(q.dtype, torch.float32)
        up_k, up_v, nope = up.up_k.to(wide), up.up_v.to(wide), up.up_k.shape[1]
        latents, rope = rows[..., : layer.v_head_dim], rows[..., layer.v_head_dim :]
        if mla_form(batch) == "absorbed":
            absorbed = torch.einsum("thn,hnl->thl", q[..., :nope].to(wide), up_k).to(q.dtype)
            forward = self.decode.forward_decode if batch.mode in DECODE_MODES else self.prefill.forward_extend
            out = forward(torch.cat([absorbed, q[..., nope:]], dim=-1), rows, latents, layer, batch, save_kv_cache=save_kv_cache)
            return torch.einsum("thl,hvl->thv", out.to(wide), up_v).to(q.dtype)

        k = torch.einsum("tl,hnl->thn", latents[:, 0].to(wide), up_k).to(q.dtype)
        k = torch.cat([k, rope.expand(-1, layer.heads, -1)], dim=-1)
        v = torch.einsum("tl,hvl->thv", latents[:, 0].to(wide), up_v).to(q.dtype)
        out, pool, new = torch.zeros_like(v), self.prefill.pools[layer.layer_id], new_lengths(batch)
        extend_attention(
            q, k, v, out, pool.k, pool.v, self.prefill.req_to_token, batch.req_pool_indices, batch.seq_lens, new,
            new.cumsum(0) - new, None, layer.sinks, layer.sm_scale, layer.logit_cap, layer.sliding_window + 1, False,
        )
        if save_kv_cache:
            store(pool, layer, rows, rows, batch.out_cache_loc, "out_cache_loc")
        return out
