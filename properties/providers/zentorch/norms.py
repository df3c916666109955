"""Norms by zentorch. Limits are those of the operators' own checks, and of the passes of its compiler that put the operators into
a model."""

from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.providers.zentorch.library import FLOATS, OPS, Given
from properties.rms_norm.bound import TWO_SUMS
from properties.rms_norm.cases import NormCase

NORM_LAYOUTS = {name: ("offset",) for name in ("x", "residual", "gate", "weight")}
IN_PLACE = "in place with a residual alone (not offered otherwise)"
NOT_OFFERED = "a weight; no groups, not Gemma's form (not arguments of it)"


def _fit_norm(case: NormCase) -> NormCase:
    wanted: NormCase = fitted(
        case, FLOATS, NORM_LAYOUTS, width=max(case.width, 1), groups=0, gemma=False, weight="call",
        outer=tuple(max(size, 1) for size in case.outer) or (1,), in_place=case.in_place and case.form == "residual",
    )
    return wanted


@adapts(
    "rms_norm",
    limits={
        "dtype float32 or bfloat16 (float16 where the CPU has AVX512-FP16)": lambda case: case.dtype not in FLOATS,
        NOT_OFFERED: lambda case: case.groups > 0 or case.gemma or case.weight == "none",
        IN_PLACE: lambda case: case.in_place and case.form != "residual",
        "the weight has x's dtype (so do its models)": lambda case: case.weight == "float32" and case.dtype != "float32",
        "at least one element": lambda case: 0 in case.outer or case.width == 0,
        "contiguous tensors (so does the compiler hold them)": other_layouts(NORM_LAYOUTS),
    },
    fit=_fit_norm,
    silent={"apart": "rows of a norm follow one another (a limit of the operator)"},
    rounding=TWO_SUMS,
    timed=lambda given: timed_norm(given),
)
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False, in_place: bool = False,
) -> Tensor | None:
    """zentorch_rms_norm, zentorch_add_rms_norm_ with a residual, gdn_rms_norm_gated with a gate"""
    if weight is None or group_size is not None or gemma:
        raise Unsupported(NOT_OFFERED)
    if in_place and residual is None:
        raise Unsupported(IN_PLACE)
    rows = x.view(-1, x.shape[-1])
    if gate is not None:
        return OPS.gdn_rms_norm_gated(rows, weight, gate.view_as(rows), eps, "silu").view_as(x)
    if residual is None:
        return OPS.zentorch_rms_norm(rows, weight, eps).view_as(x)
    out = rows if in_place else rows.clone()
    OPS.zentorch_add_rms_norm_(out, weight, residual.view_as(rows), eps)
    return None if in_place else out.view_as(x)


def timed_norm(given: Given) -> Calls:
    """The operators on rows. That with a residual writes over x: over a copy where x is to stay."""
    x, weight, eps = given["x"].flatten(0, -2), given["weight"], given.get("eps", 1e-6)
    if given.get("gate") is not None:
        gate = given["gate"].view_as(x)
        return {"gdn_rms_norm_gated": lambda: OPS.gdn_rms_norm_gated(x, weight, gate, eps, "silu")}
    if given.get("residual") is None:
        return {"rms_norm": lambda: OPS.zentorch_rms_norm(x, weight, eps)}
    residual = given["residual"].view_as(x)
    if given.get("in_place"):
        return {"add_rms_norm": lambda: OPS.zentorch_add_rms_norm_(x, weight, residual, eps)}
    return {"add_rms_norm": lambda: OPS.zentorch_add_rms_norm_(x.clone(), weight, residual, eps)}
