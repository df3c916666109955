"""Attention of requests that lie one after the other. Limits are those of the operator's own checks and of its caller,
VisionAMXAttention in `layers/attention/vision.py`, which gives keys the offsets of the queries and asks for no mask."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import READ_ONLY
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.flash_attn_varlen.cases import FLAGGED, INDICES, VarlenCase
from properties.providers.sgl_kernel.calling import call, takes

LAYOUTS = {name: (*READ_ONLY, "fused") for name in ("q", "k", "v")}
ALIGNMENT = "causal rows end at the last key in versions that take a scale, and begin at the first key in others (their masks)"
ALL_SEE = "every row sees a key (so do those of its caller)"


def _fit(case: VarlenCase) -> VarlenCase:
    causal = case.causal == "all"
    wanted: VarlenCase = fitted(
        case, ["bfloat16"], LAYOUTS, INDICES, width=-(-case.width // 2) * 2, width_v=-(-case.width_v // 2) * 2,
        causal="all" if causal else "none", left=-1, right=-1, cap=0.0, sinks="none", gaps=False,
        rows=tuple(min(rows, keys) if causal or not keys else rows for keys, rows in zip(case.lens, case.rows)),
    )
    return wanted


def _sees_none(case: VarlenCase) -> bool:
    return any(keys < (rows if case.causal == "all" else min(rows, 1)) for keys, rows in zip(case.lens, case.rows))


@adapts(
    "flash_attn_varlen",
    limits={
        "dtype bfloat16 (float16 needs AMX-FP16)": lambda case: case.dtype != "bfloat16",
        "even head sizes (checked)": lambda case: bool(case.width % 2 or case.width_v % 2),
        "all requests causal or none (one argument for all)": lambda case: case.causal in FLAGGED,
        ALL_SEE: _sees_none,
        "no window, no softcap, no sinks (not arguments of it)":
            lambda case: case.left >= 0 or (case.right >= 0 and case.causal == "none") or case.cap > 0 or case.sinks != "none",
        "requests cover all rows (so do the offsets of its caller)": lambda case: case.gaps,
        "offsets are int32 (checked)": lambda case: set(case.int32) != set(INDICES),
        "heads dense, rows and heads anywhere, offsets contiguous (checked)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    timed=lambda given: timed(given),
)
def flash_attn_varlen(**given: Any) -> Tensor:
    """flash_attn_varlen_func; a scale of one's own where this version takes it"""
    return _call(given)()


def timed(given: Mapping[str, Any]) -> Calls:
    """The call with offsets as its caller holds them."""
    return {"flash_attn_varlen_func": _call({**given, **{name: given[name].to(torch.int32) for name in INDICES}})}


def _alignment() -> str:
    return "bottom_right" if takes("flash_attn_varlen_func", "sm_scale") else "top_left"


def _call(given: Mapping[str, Any]) -> Callable[[], Tensor]:
    causal, right = given.get("causal", False), given.get("window_right", -1)
    if given.get("causal_requests") is not None or given.get("sinks") is not None or given.get("softcap", 0.0):
        raise Unsupported("all requests alike, no softcap, no sinks")
    if given.get("window_left", -1) >= 0 or (right >= 0 and not causal):
        raise Unsupported("no window")
    rows, keys = (given[name].diff() for name in INDICES)
    if (keys < (rows if causal else rows.clamp(max=1))).any():
        raise Unsupported(ALL_SEE)
    if causal and given.get("alignment", "bottom_right") != _alignment() and not rows.equal(keys):
        raise Unsupported(ALIGNMENT)
    named = {name: given[name] for name in ("q", "k", "v", *INDICES)}
    for name, lengths in (("max_seqlen_q", rows), ("max_seqlen_k", keys)):
        named[name] = int(lengths.max()) if len(lengths) else 0
    if given.get("softmax_scale") is not None:
        named["sm_scale"] = given["softmax_scale"]
    return lambda: call("flash_attn_varlen_func", **named, causal=causal)
