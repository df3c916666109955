"""Norms, activations and rotations. Limits are those of the operators' own checks and of the layers that call them."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.act_and_mul.cases import ActCase
from properties.providers.sgl_kernel.calling import call
from properties.rms_norm.cases import NormCase
from properties.rotary_embedding.cases import RotaryCase

IN_PLACE = "in place with a residual alone (not offered otherwise)"
CONTIGUOUS = "residual, gate and weight contiguous (checked, but for the residual of versions with norms of 3 dimensions)"
LARGEST_HALF = 1e4  # of what is drawn for float16
NORM_LAYOUTS = {"x": ("offset", "padded", "apart", "expanded"), **{name: ("offset",) for name in ("residual", "gate", "weight")}}


def _apart_column(case: NormCase) -> bool:
    return case.columns == 1 and case.layout.get("x", "offset") != "offset"


def _fit_norm(case: NormCase) -> NormCase:
    rows = case.form == "plain" and case.width > 1
    layouts = NORM_LAYOUTS if rows else NORM_LAYOUTS | {"x": ("offset",)}
    wanted: NormCase = fitted(
        case, ["bfloat16", "float16"], layouts, outer=(max(prod(case.outer), 1),), width=max(case.width, 1), groups=0,
        weight="call", gemma=case.gemma and case.form != "gate", in_place=case.in_place and case.form == "residual",
    )
    if wanted.dtype == "float16":  # where a case of float32 would overflow
        return replace(wanted, size=min(wanted.size, LARGEST_HALF), steep=min(wanted.steep, 100.0), heavy=False)
    return wanted


@adapts(
    "rms_norm",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "a weight of x's dtype (an argument that is no option, and checked)": lambda case: case.weight != "call",
        "no groups (not an argument of it)": lambda case: case.groups > 0,
        IN_PLACE: lambda case: case.in_place and case.form != "residual",
        "no gate in Gemma's form (not offered)": lambda case: case.gemma and case.form == "gate",
        "two dimensions, with columns (checked)": lambda case: len(case.outer) != 1 or not case.outer[0] or not case.columns,
        CONTIGUOUS: other_layouts(NORM_LAYOUTS),
        "x's last stride 1, of one column too (checked)": _apart_column,
    },
    fit=_fit_norm,
)
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False, in_place: bool = False,
) -> Any:
    """rmsnorm_cpu, gemma_rmsnorm_cpu, fused_rmsnorm_gated_cpu, fused_add_rmsnorm_cpu or gemma_fused_add_rmsnorm_cpu"""
    if group_size is not None or (gemma and gate is not None) or weight is None or weight.dtype != x.dtype:
        raise Unsupported("a weight of x's dtype, no groups, no gate in Gemma's form")
    if any(other is not None and not other.is_contiguous() for other in (gate, residual)):
        raise Unsupported(CONTIGUOUS)
    named = {"weight": weight, "eps": eps}
    if residual is not None:
        out = x if in_place else x.contiguous().clone()  # it writes over its input
        call("gemma_fused_add_rmsnorm_cpu" if gemma else "fused_add_rmsnorm_cpu", input=out, residual=residual, **named)
        return None if in_place else out
    if in_place:
        raise Unsupported(IN_PLACE)
    if gate is not None:
        return call("fused_rmsnorm_gated_cpu", input=x, gate=gate, **named)
    return call("gemma_rmsnorm_cpu" if gemma else "rmsnorm_cpu", input=x, **named)


ACT_LAYOUTS = {"x": ("offset",)}


def _fit_act(case: ActCase) -> ActCase:
    wanted: ActCase = fitted(case, ["bfloat16", "float16"], ACT_LAYOUTS, width=max(case.width, 1))
    return wanted


@adapts(
    "act_and_mul",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "x is contiguous, and has columns (so do all of its callers)":
            lambda case: other_layouts(ACT_LAYOUTS)(case) or not case.width,
    },
    fit=_fit_act,
    silent={"apart": "rows of x follow one another (a limit of the operator)"},
)
def act_and_mul(x: Tensor, activation: str = "silu") -> Any:
    """silu_and_mul_cpu, gelu_and_mul_cpu or gelu_tanh_and_mul_cpu"""
    return call(f"{activation}_and_mul_cpu", input=x)


HEAD_LAYOUTS = {"query": ("offset", "apart"), "key": ("offset", "apart"), "cos_sin_cache": ("offset",), "positions": ("offset",)}


def _fit_rotary(case: RotaryCase) -> RotaryCase:
    wanted: RotaryCase = fitted(case, ["bfloat16", "float16"], HEAD_LAYOUTS, (), wide=False, heads=max(case.heads, 1))
    return replace(wanted, kv_heads=case.kv_heads or 1)


@adapts(
    "rotary_embedding",
    limits={
        "dtype bfloat16 or float16 (its dispatch)": lambda case: case.dtype == "float32",
        "the table in query's dtype (checked)": lambda case: case.wide,
        "positions are int64 (checked)": lambda case: bool(case.int32),
        "query and key have heads (key is no option)": lambda case: not case.heads or not case.kv_heads,
        "heads side by side: q as [T, H D] (so do its layers call it)": other_layouts(HEAD_LAYOUTS),
    },
    fit=_fit_rotary,
    silent={
        "apart": "heads side by side: q as [T, H D] (so do its layers call it)",
        "wide": "the table in query's dtype (checked)",
        "heads": "key is no option",
    },
)
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, is_neox: bool = True,
    mrope_section: Sequence[int] | None = None, mrope_interleaved: bool = False,
) -> None:
    """rotary_embedding_cpu, and multimodal_rotary_embedding_cpu with sections, on flattened heads"""
    T, _, width = query.shape
    flat = {name: heads.view(T, heads.shape[1] * width) for name, heads in (("query", query), ("key", key)) if heads is not None}
    given = {"positions": positions, "head_size": width, "cos_sin_cache": cos_sin_cache, "is_neox": is_neox, **flat}
    if mrope_section is None:
        call("rotary_embedding_cpu", **given)
    else:
        sections = {"mrope_section": list(mrope_section), "mrope_interleaved": mrope_interleaved}
        call("multimodal_rotary_embedding_cpu", **given, **sections)
