"""Layers of latent attention (MLA) by mode: which form a batch takes, and the projections between the two forms."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from serving.batch import EXTEND_MODES, ForwardBatch
from serving.layers import AttentionLayer

MlaForm = Literal["absorbed", "expanded"]


@dataclass(frozen=True, eq=False)
class MlaProjections:
    """What a layer's latents are multiplied by: keys k_h = up_k[h] c without their rope part, values v_h = up_v[h] c."""

    up_k: Tensor
    """[heads, key width without rope, latent]"""
    up_v: Tensor
    """[heads, value width, latent]"""


def mla_form(batch: ForwardBatch) -> MlaForm:
    """`expanded` where every key that the batch attends comes with it, as in prefills that continue nothing: then fewer
    operations are needed with keys and values of each head. Everything else reads latents from the pool, `absorbed`."""
    if batch.mode not in EXTEND_MODES or batch.extend_seq_lens is None:
        return "absorbed"
    return "expanded" if bool((batch.seq_lens == batch.extend_seq_lens).all()) else "absorbed"


def check_projections(layer: AttentionLayer, up: MlaProjections) -> None:
    """ValueError unless the layer is latent and the projections are those of its heads and its latents."""
    if not layer.latent:
        raise ValueError(f"latent of layer {layer.layer_id}: projections belong to a latent layer")
    for name, value in (("up_k", up.up_k), ("up_v", up.up_v)):
        if value.dim() != 3 or (value.shape[0], value.shape[2]) != (layer.heads, layer.v_head_dim):
            wanted = f"[{layer.heads}, *, {layer.v_head_dim}]"
            raise ValueError(f"{name} must have shape {wanted} in layer {layer.layer_id}, got {list(value.shape)}")


def check_latent_call(
    q: Tensor, rows: Tensor, layer: AttentionLayer, up: MlaProjections, tokens: int, loc: Tensor | None, live: int
) -> None:
    """ValueError unless q is [tokens, heads, key width], rows are [tokens, 1, latent + rope], and `loc`, where it is given,
    has a slot for each live token."""
    rope = layer.head_dim - layer.v_head_dim
    shapes = {"q": [tokens, layer.heads, up.up_k.shape[1] + rope], "rows": [tokens, 1, layer.head_dim]}
    for name, value in (("q", q), ("rows", rows)):
        if list(value.shape) != shapes[name]:
            raise ValueError(f"{name} must have shape {shapes[name]} in layer {layer.layer_id}, got {list(value.shape)}")
    if loc is not None and list(loc.shape) != [live]:
        raise ValueError(f"out_cache_loc must have shape {[live]}, got {list(loc.shape)}")
