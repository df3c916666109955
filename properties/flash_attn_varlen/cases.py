"""flash_attn_varlen: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_COLUMNS, FAR_PARAMETERS, FAR_VECTOR, READ_ROWS
from kernelpair.call.values import poison
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared import attention_values as numbers
from properties.shared.pads import more_tokens
from properties.shared.strategies import (
    CROWD,
    CROWDS,
    any_of,
    around,
    between,
    choices,
    common,
    crowded,
    near,
    one_far,
    thinned,
    together,
)

HEADS = ((1, 1), (4, 1), (8, 1), (3, 1), (16, 1), (2, 2), (8, 2), (12, 4), (35, 35))  # (H, Hkv)
WIDTHS = ((1, 1), (13, 13), (31, 32), (32, 33), (64, 64), (80, 96), (128, 128), (192, 128), (13, 256), (256, 1))
LENGTHS = (1, 2, 0, 3, 5, *around(16, 32), 48, *around(64, 256))
BATCHES = (1, 1, 2, 2, 3, 4, 1, 2, 3, 0)
FLAGGED = ("odd", "even", "thirds", "first")  # `causal` of some requests
MANY = 67  # requests of one case in 120: more than the bits of a word
BUDGET = (40_000, 40_000, 40_000, 400_000, 400_000, 2_000_000)  # multiply-adds of both products
LONG_BUDGET = 6_000_000  # one case in 8, with few heads and small widths: several blocks of keys
LONG = (*around(512), 700)
LATE = 300  # rows and more of a request, of which a window hides the first block of keys from the last that share its packed keys
FARTHEST = 2**16 + 465  # more keys than 16 bits count
CROWDED = [(1 + b % 2, 1 + b % 3) for b in range(CROWD)]  # rows and keys of requests
EMULATED_WORK = 3_000_000  # multiply-adds of padded tiles: 5 ms
LAYOUTS = {
    "q": READ_ROWS,
    "k": READ_ROWS,
    "v": READ_ROWS,
    "cu_seqlens_q": FAR_VECTOR,
    "cu_seqlens_k": FAR_VECTOR,
    "causal_requests": FAR_PARAMETERS,
    "sinks": FAR_PARAMETERS,
}
INDICES = ("cu_seqlens_q", "cu_seqlens_k")
VECTORS = ("cu_seqlens_q", "cu_seqlens_k", "causal_requests", "sinks")
FUSED = (("k", "v"), ("v", "k"))


@dataclass(frozen=True, kw_only=True)
class VarlenCase(Case):
    """Request b has rows[b] query rows over lens[b] keys."""

    rows: tuple[int, ...] = (1,)
    lens: tuple[int, ...] = (1,)
    heads: int = 1
    kv_heads: int = 1
    width: int = 1
    width_v: int = 1
    causal: Literal["none", "all", "odd", "even", "thirds", "first"] = "none"
    """Which requests are causal; the odd ones, the even ones, every third or the first are named by causal_requests."""
    alignment: Literal["bottom_right", "top_left"] = "bottom_right"
    left: int = -1
    right: int = -1
    cap: float = 0.0
    sinks: Literal["none", "same", "float32"] = "none"
    scaled: bool = True
    """softmax_scale is given; else it is derived from the width."""
    gaps: bool = False
    """Rows and keys that belong to no request stand in front of and behind the others."""
    values: numbers.Values = "random"
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of q and v; k has the inverse."""


def is_causal(case: VarlenCase, b: int) -> bool:
    if case.causal in FLAGGED and case.layout.get("causal_requests") == EXPANDED:
        b = 0  # one flag for all requests
    which = {"none": False, "all": True, "even": b % 2 == 0, "odd": b % 2 == 1, "thirds": b % 3 == 0, "first": b == 0}
    return which[case.causal]


def position(case: VarlenCase, b: int) -> int:
    """Of request b's first row among its keys."""
    return case.lens[b] - case.rows[b] if case.alignment == "bottom_right" else 0


def work(case: VarlenCase) -> int:
    """Multiply-adds of both products."""
    return sum(q * k for q, k in zip(case.rows, case.lens)) * case.heads * (case.width + case.width_v)


def padded_work(case: VarlenCase) -> int:
    """The same in whole tiles."""
    def up(n: int, step: int) -> int:
        return (n + step - 1) // step * step

    group = case.heads // case.kv_heads
    scores = sum(up(q * group, 16) * up(k, 32) for q, k in zip(case.rows, case.lens))
    return scores * case.kv_heads * (up(case.width, 32) + up(case.width_v, 32))


FIELDS = together({
    "dtype": st.sampled_from(("bfloat16", "float32", "float16")),
    **common(LAYOUTS, INDICES, FUSED),
    "causal": st.sampled_from(("all", "none", "odd", "even", "thirds", "first")),
    "alignment": st.sampled_from(("bottom_right", "top_left")),
    "scaled": st.booleans(),
    "gaps": st.booleans(),
    "values": st.sampled_from(("random", "random", "random", "one_hot", "equal")),
    "spread": st.sampled_from((1.0, 0.1, 4.0)),
    "size": st.sampled_from((1.0, 1e-3, 0.1, 100.0)),
})
MASKS = choices({
    "left": (-1, -1, -1, 0, 1, "lk-1", "lk", "lk/2", 2**62, *numbers.WIDE_WINDOWS),
    "right": (-1, -1, -1, 0, 1, "lk-1", "lk", "lk/2", 2**62, *numbers.WIDE_WINDOWS),
    "cap": numbers.CAPS,
    "sinks": ("none", "none", "same", "float32"),
    "flags": ("as drawn", "as drawn", "strided", EXPANDED),
})


@cache
def _lengths(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in (*LENGTHS, *LONG) if n <= most] or [1])


@st.composite
def strategy(draw: st.DrawFn) -> VarlenCase:
    """Any call that the contract allows, within the budget of work."""
    fields = one_far(draw(FIELDS), VECTORS)
    heads, kv_heads = draw(any_of(*HEADS), label="heads")
    width, width_v = draw(any_of(*WIDTHS), label="widths")
    batch = draw(any_of(*BATCHES), label="batch")
    if fields["layout"].get("causal_requests") == FAR_COLUMNS:  # of one flag, or of none, nothing lies far apart
        batch, fields = max(batch, 2), fields | {"causal": FLAGGED[fields["seed"] // 32 % len(FLAGGED)]}
    budget, rare = draw(any_of(*BUDGET), label="budget"), draw(between(0, 119), label="rare")
    if rare % 8 == 7:
        budget, batch, (heads, kv_heads) = LONG_BUDGET, min(batch, 2), HEADS[rare // 8 % 3]
        width, width_v = WIDTHS[rare // 8 % 5]
    if unusual := numbers.unusual_heads(fields["seed"]):
        (heads, kv_heads), (width, width_v) = unusual, WIDTHS[rare % 3]
    most = max(1, budget // (heads * (width + width_v) * max(batch, 1)))
    lens = tuple(draw(_lengths(most), label="keys") for _ in range(batch))
    rows = tuple(draw(_lengths(max(1, most // max(n, 1))), label="rows") for n in lens)
    if rare == 6:
        heads = 0
    if rare == 5:
        heads, kv_heads = HEADS[0]
        rows, lens = (tuple(1 + b % length for b in range(MANY)) for length in (2, 5))
        rows = (*rows, 600)  # of the last one: several groups of rows
        lens = (*lens, 5)
    crowd = crowded(fields)
    if crowd or fields["seed"] % 32 == 20:
        heads, kv_heads, width, width_v = 1, 1, 1, 1
        rows, lens = (1 + rare % 3,), (FARTHEST,)
    if crowd:
        rows, lens = zip(*thinned(fields, CROWDED[: draw(CROWDS, label="crowd")], (0, 0)))
    flagged = crowd and fields["seed"] // 32 % 4 > 0
    if flagged:  # flags that do not repeat with any power of two, and show: no window hides as many keys
        fields = fields | {"causal": "thirds"}
    if fields["seed"] % 64 == 21:
        fields, heads, kv_heads, width, width_v = near(fields), 1, 1, 1, 1
        rows, lens = (FARTHEST,), (1 + rare % 3,)
    late = fields["seed"] % 32 == 9
    if late:
        (heads, kv_heads), (width, width_v) = HEADS[0], WIDTHS[rare % 3]
        rows, lens = (LATE + rare // 2,), (LATE + rare // 2 + rare % 5,)
    case = completed(draw, fields, rows, lens, {"heads": heads, "kv_heads": kv_heads, "width": width, "width_v": width_v})
    if flagged:
        case = replace(case, right=-1, layout={name: kind for name, kind in case.layout.items() if name != "causal_requests"})
    return replace(case, left=rare % 40) if late else case


def completed(
    draw: st.DrawFn, fields: dict[str, Any], rows: tuple[int, ...], lens: tuple[int, ...], sizes: dict[str, Any]
) -> VarlenCase:
    """The case of these sizes, with windows, a cap and sinks."""
    n, drawn = max(lens, default=0), dict(draw(MASKS, label="masks"))
    flags = drawn.pop("flags")
    far = fields["layout"].get("causal_requests") == FAR_COLUMNS
    if flags != "as drawn" and fields["causal"] in FLAGGED and not far:
        fields = fields | {"layout": {**fields["layout"], "causal_requests": flags}}
    named = {"lk-1": max(n - 1, 0), "lk": n, "lk/2": n // 2}
    drawn |= {side: named.get(drawn[side], drawn[side]) for side in ("left", "right")}
    if fields["values"] != "random":
        drawn |= {"cap": 0.0, "sinks": "none"}
    if fields["seed"] % 16 == numbers.FAINT_SEED:
        drawn["cap"] = 0.0
    return VarlenCase(**numbers.steep(fields, drawn["cap"]), **sizes, **drawn, rows=rows, lens=lens)


def _offsets(case: VarlenCase, lengths: tuple[int, ...], before: int) -> Tensor:
    return torch.tensor(list(accumulate(lengths, initial=before if case.gaps else 0)))


def inputs(case: VarlenCase) -> Inputs:
    """Poison in every row that belongs to no request."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    of_q, of_k = _offsets(case, case.rows, case.seed % 3), _offsets(case, case.lens, case.seed % 4)
    per_token = (case.heads + case.kv_heads) * (case.width + case.width_v)
    of_q, of_k = (offsets + more_tokens(case.seed, case.layout, per_token) for offsets in (of_q, of_k))
    after = case.seed % 5 if case.gaps else 0
    Tq, Tk = int(of_q[-1]) + after, int(of_k[-1]) + after
    shapes = {"q": (Tq, case.heads, case.width), "k": (Tk, case.kv_heads, case.width), "v": (Tk, case.kv_heads, case.width_v)}
    makers = {"q": numbers.queries, "k": numbers.keys, "v": numbers.values}
    drawn = {name: makers[name](case, name, shape) for name, shape in shapes.items()}
    for b, n in enumerate(case.lens):
        own = slice(int(of_k[b]), int(of_k[b + 1]))
        first = position(case, b)
        edges = [0, n - 1, first, first + case.rows[b] - 1, first - case.left, first + case.right, first + case.right + 1]
        numbers.mark(case, f"marked{b}", drawn["k"][own], drawn["v"][own], edges, n)
        p, right = torch.arange(case.rows[b]) + first, 0 if is_causal(case, b) else case.right
        if case.layout.get("k") != EXPANDED:  # else all keys would be the one without weight
            numbers.lose(case, f"lost{b}", drawn["k"][own], *numbers.seen_from_to(p, case.left, right, case.rows[b] + n))
            numbers.make_extreme(case, f"k{b}", drawn["k"][own], drawn["v"][own], max(case.lens))
    given: Inputs = {}
    for name, offsets in (("q", of_q), ("k", of_k), ("v", of_k)):
        given[name] = poison(case.poison, shapes[name], dtype)
        live = slice(0 if case.layout.get(name) == EXPANDED else int(offsets[0]), int(offsets[-1]))
        given[name][live] = drawn[name][live]
    flags = torch.tensor([is_causal(case, b) for b in range(len(case.rows))], dtype=torch.bool)
    return given | {
        "cu_seqlens_q": of_q,
        "cu_seqlens_k": of_k,
        "sinks": numbers.sinks_of(case),
        "softmax_scale": numbers.sm_scale(case, case.width) if case.scaled or case.values == "one_hot" else None,
        "causal": case.causal == "all",
        "causal_requests": flags if case.causal in FLAGGED else None,
        "alignment": case.alignment,
        "window_left": case.left,
        "window_right": case.right,
        "softcap": numbers.cap_of(case),
    }


def _some(case: VarlenCase, holds: Callable[[int, int], bool]) -> bool:
    return any(holds(q, k) for q, k in zip(case.rows, case.lens))


EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": lambda case: not case.rows,
    "no keys": lambda case: _some(case, lambda q, k: q > 0 and k == 0),
    "no rows": lambda case: 0 in case.rows and any(case.rows),
    **{f"{kind}, {name}": lambda case, kind=kind, holds=holds: case.alignment == kind and case.causal == "all"  # type: ignore[misc]
       and _some(case, holds)
       for kind in ("bottom_right", "top_left")
       for name, holds in (("more rows than keys", lambda q, k: q > k > 0), ("more keys than rows", lambda q, k: k > q > 1))},
    "both kinds of requests": lambda case: len({is_causal(case, b) for b, q in enumerate(case.rows) if q > 1}) > 1,
    "one flag for several requests": lambda case: case.causal in FLAGGED and len(case.rows) > 1
    and case.layout.get("causal_requests") == EXPANDED,
    "not causal": lambda case: case.causal == "none" and case.left == case.right == -1 and _some(case, lambda q, k: q > 1 < k),
    "left window cuts": lambda case: 0 <= case.left < max(case.lens, default=0) - 1,
    "a window that hides a whole block of keys from later rows": lambda case: case.left >= 0
    and _some(case, lambda q, k: min(q, k) > 288 + case.left),
    "right window cuts": lambda case: case.causal == "none" and _some(case, lambda q, k: 0 <= case.right < min(q, k) - 1),
    "flags far apart": lambda case: case.layout.get("causal_requests") == FAR_COLUMNS and case.causal in FLAGGED
    and len(case.rows) > 1,
    "strided flags": lambda case: case.layout.get("causal_requests") == "strided" and len(case.rows) > 1,
    "a window and a causal request": lambda case: case.right > 0 and case.causal in FLAGGED,
    "more keys than 16 bits count": lambda case: _some(case, lambda q, k: q > 0 and k > 2**16),
    "more rows of a request than 16 bits count": lambda case: _some(case, lambda q, k: q > 2**16 and k > 0),
    "more heads than a byte counts": lambda case: case.heads > 256 and _some(case, lambda q, k: q > 0 and k > 0),
    "a crowd of requests": lambda case: len(case.rows) > 1024,
    "more requests than bits of a word": lambda case: len(case.rows) > 64,
    "softcap": lambda case: case.cap > 0,
    "scores of -inf": lambda case: numbers.loses(case) and case.layout.get("k") != EXPANDED
    and _some(case, lambda q, k: q > 0 and k > 1),
    "a scale near the end of float32": lambda case: numbers.stretch(case)[0] > 1e38 and _some(case, lambda q, k: q > 0 and k > 1),
    **{f"{kind} values": lambda case, kind=kind: numbers.extreme(case) == kind  # type: ignore[misc]
       and case.layout.get("k") != EXPANDED and _some(case, lambda q, k: q > 0 and k > 1)
       for kind in ("large", "small", "faint")},
    "sinks without keys": lambda case: case.sinks != "none" and 0 in case.lens,
    "default scale": lambda case: not case.scaled and case.values == "random",
    "rows of no request": lambda case: case.gaps and case.seed % 3 > 0,
    "several blocks of keys": lambda case: max(case.lens, default=0) > 256,
    "several kv heads share queries": lambda case: 1 < case.kv_heads < case.heads,
    "no query heads": lambda case: case.heads == 0 and any(case.rows),
    "D != Dv": lambda case: case.width != case.width_v,
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype  # type: ignore[misc]
       for dtype in ("bfloat16", "float16", "float32")},
}
