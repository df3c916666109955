"""Attention by zentorch. Limits are those of `zentorch_sdpa`'s own checks and of the pass of its compiler that puts it where a
model has torch's flash attention for CPUs: with that its causal rows stand at the first keys."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import ANY_STRIDES, EXPANDED, READ_ROWS, REPEATED
from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.flash_attn_varlen.cases import VarlenCase
from properties.providers.zentorch.library import OPS, Given

VARLEN_LAYOUTS = {
    **dict.fromkeys(("q", "k", "v"), (*(kind for kind in READ_ROWS if kind not in REPEATED), "fused")),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "causal_requests"), (*ANY_STRIDES, EXPANDED)),
}
NO_SINKS = "no softcap, no sinks (not arguments of it)"


def _fit(case: VarlenCase) -> VarlenCase:
    wanted: VarlenCase = fitted(
        case, (), VARLEN_LAYOUTS, heads=case.heads or case.kv_heads, width_v=case.width, lens=tuple(max(n, 1) for n in case.lens),
        cap=0.0, sinks="none",
    )
    return replace(wanted, layout={}) if wanted.width == 1 else wanted


@adapts(
    "flash_attn_varlen",
    limits={
        "D = Dv (checked)": lambda case: case.width != case.width_v,
        "keys for all rows (checked)": lambda case: any(q and not k for q, k in zip(case.rows, case.lens)),
        "at least one head (a model has one)": lambda case: case.heads == 0,
        NO_SINKS: lambda case: case.cap > 0 or case.sinks != "none",
        "heads of one column are dense tensors, for their stride is 1 (checked)":
            lambda case: case.width == 1 and any(case.layout.get(name, "dense") != "dense" for name in "qkv"),
        "no stride of 0 between rows (checked)": other_layouts(VARLEN_LAYOUTS),
    },
    fit=_fit,
    timed=lambda given: _timed(given),
)
def flash_attn_varlen(**given: Any) -> Tensor:
    """zentorch_sdpa, request by request; with a mask unless all keys are seen, or causal rows stand at the first keys"""
    return _call(given)()


def _mask(given: Given, lq: int, lk: int, causal: bool) -> tuple[bool, Tensor | None]:
    """What says which keys a row sees: the operator's flag or a mask [lq, lk] of 0 and -inf in q's dtype."""
    left, right = given.get("window_left", -1), 0 if causal else given.get("window_right", -1)
    top_left = given.get("alignment", "bottom_right") == "top_left" or lq == lk
    if left < 0 and (right < 0 or (causal and top_left)):
        return causal, None
    offset = 0 if top_left else lk - lq
    seen = torch.ones(lq, lk, dtype=torch.bool)
    if right >= 0:
        seen = seen.tril(min(offset + right, lk))
    if left >= 0:
        seen = seen.triu(max(offset - left, -lq))
    return False, torch.zeros(lq, lk, dtype=given["q"].dtype).masked_fill(~seen, -torch.inf)


def _call(given: Given) -> Callable[[], Tensor]:
    if given.get("sinks") is not None or given.get("softcap", 0.0):
        raise Unsupported(NO_SINKS)
    q, scale, calls = given["q"], given.get("softmax_scale"), []
    starts, firsts = given["cu_seqlens_q"].tolist(), given["cu_seqlens_k"].tolist()
    flags = given.get("causal_requests")
    for b in range(len(starts) - 1):
        own, keys = slice(starts[b], starts[b + 1]), slice(firsts[b], firsts[b + 1])
        if starts[b] == starts[b + 1]:
            continue
        causal = given.get("causal", False) if flags is None else bool(flags[b])
        flag, mask = _mask(given, starts[b + 1] - starts[b], firsts[b + 1] - firsts[b], causal)
        parts = [given[name][rows].transpose(0, 1)[None] for name, rows in (("q", own), ("k", keys), ("v", keys))]
        calls.append((own, parts, flag, mask))

    def run() -> Tensor:
        out = q.new_zeros((*q.shape[:2], given["v"].shape[-1]))
        for own, parts, flag, mask in calls:
            out[own] = OPS.zentorch_sdpa(*parts, 0.0, flag, attn_mask=mask, scale=scale)[0][0].transpose(0, 1)
        return out

    return run


def _timed(given: Given) -> Calls:
    return {"sdpa": _call(given)}
