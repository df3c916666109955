"""Attention, and the store of its keys and values. Limits are those of the operators' own checks and of IntelAMXAttnBackend."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.layout import FAR
from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.providers.sgl_kernel.calling import call
from properties.providers.vllm_cpu import attention as _vllm
from properties.store_cache.cases import StoreCacheCase

NO_SCALES = {"k_buf_scale": None, "v_buf_scale": None}  # of a cache in float8, which none of our cases has
NO_SLOTS = torch.empty(0, dtype=torch.int64)  # for calls without a new key: the operator wants slots all the same


@adapts(
    "extend_attention",
    limits={
        **_vllm.extend_attention.limits,
        "k and v are given together (checked by newer versions)": lambda case: case.without != "",
    },
    fit=lambda case: replace(_vllm.extend_attention.fit(case), without=""),
)
def extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
) -> None:
    """extend_attention_cpu"""
    if k is not None and k.shape[1:] != k_cache.shape[1:] and (seq_lens > extend_seq_lens).any():
        raise Unsupported(_vllm.NO_PREFIX)
    call(
        "extend_attention_cpu", q_extend=q, k_extend=k, v_extend=v, o_extend=out, k_buffer=k_cache, v_buffer=v_cache,
        **NO_SCALES, req_to_token=_vllm.named(req_to_token, k_cache, seq_lens, encoder_lens), req_pool_indices=req_pool_indices,
        seq_lens=seq_lens, extend_seq_lens=extend_seq_lens, extend_start_loc=extend_start_loc,
        max_len_extend=int(extend_seq_lens.max()) if len(extend_seq_lens) else 0, sm_scale=sm_scale, logit_cap=logit_cap,
        is_cross_attn=is_cross_attn, sliding_window_size=sliding_window, encoder_lens=encoder_lens, sinks=sinks,
    )


@adapts(
    "decode_attention",
    limits={
        **_vllm.decode_attention.limits,
        "MLA with a new key (checked)": lambda case: _vllm.is_mla(case) and not case.write,
    },
    fit=lambda case: replace(_vllm.decode_attention.fit(case), write=case.write or _vllm.is_mla(case)),
)
def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, key: Tensor | None, value: Tensor | None, loc: Tensor | None,
    attn_logits: Tensor, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
    pad_slot: int | None = None,
) -> None:
    """decode_attention_cpu"""
    if pad_slot is not None:
        raise Unsupported("no pads (not offered)")
    seq_lens = _vllm.held(seq_lens, is_cross_attn)
    call(
        "decode_attention_cpu", query=q, k_buffer=k_cache, v_buffer=v_cache, **NO_SCALES, output=out,
        key=key, value=_vllm.new_value(key, value, k_cache, v_cache), loc=NO_SLOTS if loc is None else loc,
        attn_logits=attn_logits,
        req_to_token=_vllm.named(req_to_token, k_cache, seq_lens, encoder_lens), req_pool_indices=req_pool_indices,
        seq_lens=seq_lens, sm_scale=sm_scale, logit_cap=logit_cap, is_cross_attn=is_cross_attn,
        sliding_window_size=sliding_window, encoder_lens=encoder_lens, sinks=sinks,
    )


ROWS_APART = {"k": ("offset", "expanded"), "v": ("offset", "expanded"), "k_cache": ("offset", FAR), "v_cache": ("offset", FAR)}


def _heads_apart(case: StoreCacheCase) -> bool:
    """Whether the strides of heads differ from their size; of one head any stride is legal here, and checked there."""
    return other_layouts(ROWS_APART)(case) or (case.heads == 1 and FAR in case.layout.values())


def _fit_store(case: StoreCacheCase) -> StoreCacheCase:
    layouts = ROWS_APART if case.heads != 1 else {name: kinds[:1] for name, kinds in ROWS_APART.items()}
    width = max(case.width_k, 1)
    wanted: StoreCacheCase = fitted(
        case, ["bfloat16", "float16", "uint8"], layouts, width_k=width, width_v=width, pads=(), pad_in_range=False
    )
    return wanted


@adapts(
    "store_cache",
    limits={
        "dtype bfloat16, float16 or uint8 (its dispatch)": lambda case: case.dtype not in ("bfloat16", "float16", "uint8"),
        "K as wide as V (one row length for both)": lambda case: case.width_k != case.width_v,
        "K and V have columns (without them strides of heads are not their size: checked)": lambda case: not case.width_k,
        "rows anywhere, contiguous over heads and columns; indices contiguous (checked)": _heads_apart,
        "no pads (not an argument of it)": lambda case: bool(case.pads),
    },
    fit=_fit_store,
)
def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, pad_slot: int | None = None
) -> None:
    """store_cache_cpu"""
    call("store_cache_cpu", k=k, v=v, k_cache=k_cache, v_cache=v_cache, indices=indices, row_dim=None)
