"""Layers as a backend sees them, and the memory that they keep between steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from serving.checks import check_page_size, check_positive
from serving.packed import PackedConvWeight
from serving.registry import Capabilities, backend_named

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """One attention layer. Layers of a model may differ in everything; each has its own pool."""

    layer_id: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    sm_scale: float
    logit_cap: float = 0.0
    sliding_window: int = -1
    """Keys to the left that a query sees beside itself; -1: all."""
    is_cross: bool = False
    """Queries attend the request's encoder tokens, and nothing else."""
    sinks: Tensor | None = None
    k_scale: float | None = None
    v_scale: float | None = None
    """Of a float8 cache: what is stored is k / k_scale and v / v_scale."""
    local: bool = False
    """Chunked local attention: a query sees the keys of its own chunk only."""
    latent: bool = False
    """Absorbed MLA: one row a token, whose first v_head_dim columns are the value."""


@dataclass(frozen=True, eq=False)
class GdnLayer:
    """The attention of a gated-delta-net layer: everything that gdn_attention_core takes beside activations and state."""

    layer_id: int
    num_k_heads: int
    head_k_dim: int
    num_v_heads: int
    head_v_dim: int
    conv_weight: PackedConvWeight
    conv_bias: Tensor | None
    A_log: Tensor
    dt_bias: Tensor
    use_qk_l2norm: bool = True
    eps: float = 1e-5


@dataclass(frozen=True, eq=False)
class KVPool:
    """Keys [P, kv_heads, head_dim] and values [P, kv_heads, v_head_dim] of one layer; a latent layer's v is a view of its k."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, eq=False)
class StatePool:
    """Recurrent state of one layer: conv [slots, w-1, dim] ("SD") or [slots, dim, w-1] ("DS"), ssm as its layout says."""

    conv: Tensor
    ssm: Tensor
    conv_layout: str = "SD"
    state_layout: str = "vk"


Route = Literal["rows", "latent", "float8"]


def store_route(layer: AttentionLayer, pool: KVPool) -> Route:
    """How a layer's new keys come into its pool, by its head sizes and the pool's dtype.

    `rows`: k and v as they are, one row each, of whatever two widths. `latent`: one row [latent | rope], cut in two, so that one
    call of store_cache writes it. `float8`: divided by the layer's scales, saturated and rounded before that.
    """
    if layer.latent:
        return "latent"
    return "float8" if pool.k.dtype in FLOAT8 else "rows"


def check_stored(layer: AttentionLayer, pool: KVPool, k: Tensor, v: Tensor) -> None:
    """TypeError where k or v cannot become rows of the pool: only float8 pools convert what they are given."""
    for name, rows, cache in (("k", k, pool.k), ("v", v, pool.v)):
        fits = rows.dtype.is_floating_point and rows.dtype not in FLOAT8 if cache.dtype in FLOAT8 else rows.dtype == cache.dtype
        if not fits:
            raise TypeError(f"{name} has dtype {rows.dtype}: the pool of layer {layer.layer_id} is {cache.dtype}")


def check_layers(backend: str, layers: Sequence[AttentionLayer], pools: Mapping[int, KVPool], page_size: int = 1) -> None:
    """What a backend refuses when it is made: ValueError naming the layer's field or the pool, TypeError for dtypes."""
    can = backend_named(backend)
    check_page_size(page_size)
    if any(layer.is_cross for layer in layers) and any(layer.sliding_window >= 0 for layer in layers):
        raise ValueError("sliding_window: an encoder-decoder model cannot have layers with a sliding window")
    for layer in layers:
        _check_layer(backend, can, layer)
        if layer.layer_id not in pools:
            raise ValueError(f"pools: there is none for layer {layer.layer_id}")
        _check_pool(layer, pools[layer.layer_id], can, page_size)


def check_chunked(layers: Sequence[AttentionLayer], attn_chunk_size: int | None) -> None:
    """ValueError where a layer of chunked local attention lacks the size of its chunks."""
    if attn_chunk_size is None and any(layer.local for layer in layers):
        raise ValueError("attn_chunk_size must be given for layers of chunked local attention")


def _check_layer(backend: str, can: Capabilities, layer: AttentionLayer) -> None:
    who = f"layer {layer.layer_id}"
    for name in ("heads", "kv_heads", "head_dim", "v_head_dim"):
        if getattr(layer, name) < 1:
            raise ValueError(f"{name} of {who} must be at least 1, got {getattr(layer, name)}")
    if layer.heads % layer.kv_heads:
        raise ValueError(f"heads of {who}: {layer.heads} is no multiple of kv_heads = {layer.kv_heads}")
    if layer.sliding_window < -1:
        raise ValueError(f"sliding_window of {who} must be at least -1, got {layer.sliding_window}")
    _check_numbers(layer, who)
    if layer.local and (layer.is_cross or layer.sliding_window >= 0):
        raise ValueError(f"local of {who}: a local layer has neither a window nor an encoder")
    if layer.latent and (layer.kv_heads != 1 or layer.v_head_dim > layer.head_dim or layer.is_cross or layer.local):
        raise ValueError(f"latent of {who}: MLA has one key head, values that are part of the keys, no encoder, no chunks")
    for field, able in (("is_cross", can.cross), ("local", can.local), ("latent", can.mla)):
        if getattr(layer, field) and not able:
            raise ValueError(f"{field} of {who}: the backend {backend!r} cannot do that")
    if can.mla_only and not layer.latent:
        raise ValueError(f"latent of {who}: the backend {backend!r} serves MLA layers only")
    plain = layer.sinks is None and layer.logit_cap == 0 and layer.sliding_window < 0
    if can.mla_only and not plain:
        raise ValueError(f"{who}: the backend {backend!r} knows no sinks, logit_cap or sliding_window")


def _check_numbers(layer: AttentionLayer, who: str) -> None:
    """Scales, cap and sinks, of which a kernel would say so only after the first keys are stored."""
    for name in ("sm_scale", "k_scale", "v_scale"):
        if getattr(layer, name) is not None:
            check_positive(f"{name} of {who}", getattr(layer, name))
    if layer.logit_cap != 0:  # 0: no cap
        check_positive(f"logit_cap of {who}", layer.logit_cap)
        scale, cap = torch.tensor([layer.sm_scale, layer.logit_cap], dtype=torch.float32)
        if scale.div(cap).isinf():
            raise ValueError(f"logit_cap of {who}: sm_scale {layer.sm_scale} divided by {layer.logit_cap} is infinite in float32")
    if layer.sinks is None:
        return
    if list(layer.sinks.shape) != [layer.heads]:
        raise ValueError(f"sinks of {who} must have shape {[layer.heads]}, got {list(layer.sinks.shape)}")
    wrong = layer.sinks.isnan() | (layer.sinks == float("inf"))
    if wrong.any():
        h = int(wrong.nonzero()[0])
        raise ValueError(f"sinks of {who} must be finite or -inf, got {float(layer.sinks[h])} of head {h}")


def _check_pool(layer: AttentionLayer, pool: KVPool, can: Capabilities, page_size: int) -> None:
    who = f"the pool of layer {layer.layer_id}"
    slots = pool.k.shape[0]
    for name, cache, width in (("k", pool.k, layer.head_dim), ("v", pool.v, layer.v_head_dim)):
        if list(cache.shape) != [slots, layer.kv_heads, width]:
            raise ValueError(f"{name} of {who} must have shape {[slots, layer.kv_heads, width]}, got {list(cache.shape)}")
    if pool.k.dtype != pool.v.dtype:
        raise TypeError(f"v of {who} has dtype {pool.v.dtype}, but k has {pool.k.dtype}")
    if pool.k.dtype in FLOAT8 and not can.float8:
        raise TypeError(f"k of {who} is float8, which only a paged cache may be")
    if pool.k.dtype not in FLOAT8 and (layer.k_scale is not None or layer.v_scale is not None):
        raise ValueError(f"k_scale of {who}: a scale belongs to a float8 cache, this one is {pool.k.dtype}")
    if layer.latent and pool.k.dtype in FLOAT8:
        raise TypeError(f"k of {who} is float8, which a latent cache cannot be")
    if slots % page_size:
        raise ValueError(f"page_size {page_size}: {who} has {slots} slots, which are no whole pages")
    if layer.latent and pool.v.data_ptr() != pool.k.data_ptr():
        raise ValueError(f"v of {who} must be the first columns of its k")
