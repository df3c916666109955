"""merge_state: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR, FAR_PARAMETERS, FLAT, READ_ROWS, REPEATED
from kernelpair.call.values import generator, poison_value, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import any_of, around, between, common, float_dtypes, near, shrinking, together

NAMES = ("out", "lse")
ROWS = (1, 2, 0, 3, 7, 33)
HEADS = (1, 2, 3, 8, 16)
WIDTHS = (1, 5, 11, *around(16, 32), 22, 28, 64, 96, 128, 0)
MODELS = ((300, 32, 128), (33, 128, 512), (2048, 8, 64), (256, 28, 128), (16, 71, 64), (1030, 16, 80))  # T, H, Dv
GAPS = (1.0, 0.0, 8.0, 40.0, 200.0, 6e4)  # largest |lse_a - lse_b| / 2: beyond 104 the smaller part has no weight in float32
SIZES = (1.0, 1e-3, 1e2, 1e2, 1.6e38)  # of the values; two of the largest, each times a weight of 1, float32 holds summed
MANY = (35_000, 2)  # rows and heads, or columns, of one case in 64 each: more than 16 bits count
WIDEST = 70_000
BASES = (0.0, 5.0, -60.0, 3000.0, 6e4, -6e4, -2e9, -1e30, -2e38, 3e38)  # around which a part lies; float32 ends at 3.4e38
LOGARITHM = {"base": 0.0, "base_b": -7.8, "gap": 1.0}  # a sum near 0, in which the last bits of log(1 + w) show; w is about 2^-11
APART = {"base": BASES[-1], "base_b": BASES[-2]}  # further than float32 holds
LAYOUTS = {
    "v_a": READ_ROWS,
    "v_b": READ_ROWS,
    "lse_a": (*FAR_PARAMETERS, FAR, FLAT),
    "lse_b": (*FAR_PARAMETERS, FAR, FLAT),
}


@dataclass(frozen=True, kw_only=True)
class MergeCase(Case):
    """Parts of `rows` tokens and some heads."""

    rows: int = 1
    heads: int = 1
    width: int = 1
    gap: float = 1.0
    base: float = 0.0
    base_b: float | None = None
    """Of the second part; None: that of the first."""
    empty: Literal["none", "some", "a", "b", "both"] = "none"
    """Parts without keys: their values are poison."""
    size: float = 1.0
    """Of the values."""
    silent: bool = False
    """Values of the part with the larger lse are 0: the other's show whatever their weight."""


FIELDS = together({
    "dtype": float_dtypes,
    **common(LAYOUTS, []),
    "gap": any_of(*GAPS),
    "base": any_of(*BASES),
    "base_b": any_of(*(None,) * 3 * len(BASES), *BASES),
    "empty": any_of("none", "none", "some", "some", "a", "b", "both"),
    "size": any_of(*SIZES),
    "silent": any_of(False, False, False, False, True),
})


@st.composite
def strategy(draw: st.DrawFn) -> MergeCase:
    """Any parts, layouts and dtypes that the contract allows."""
    fields = draw(FIELDS)
    fields |= {3: LOGARITHM, 5: APART}.get(fields["seed"] % 16, {})
    rows, heads = draw(any_of(*ROWS), label="rows"), draw(any_of(*HEADS), label="heads")
    width, rare = draw(any_of(*WIDTHS), label="width"), draw(between(0, 63), label="rare")
    if rare == 63:
        return MergeCase(**near(fields), rows=MANY[0], heads=MANY[1], width=min(width, 3))
    if rare == 62:
        return MergeCase(**near(fields), rows=min(rows, 2), heads=min(heads, 2), width=WIDEST)
    return MergeCase(**fields, rows=rows, heads=heads, width=width)


@cache
def models(slow: bool) -> st.SearchStrategy[MergeCase]:
    """Whole prompts and wide heads: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> MergeCase:
    fields, (rows, heads, width) = draw(FIELDS), draw(any_of(*MODELS), label="rows, heads, width")
    sizes: dict[str, Any] = {"rows": draw(shrinking(rows)), "heads": draw(shrinking(heads)), "width": draw(shrinking(width))}
    return MergeCase(**fields, **sizes)


def _empty(case: MergeCase, name: str) -> Tensor:
    """[T, H]: where this part has no keys; the same in all rows, or all heads, where the part's lse has one alone."""
    shape = (case.rows, case.heads)
    if case.empty in ("a", "b", "both"):
        return torch.full(shape, case.empty in (name, "both"))
    drawn = torch.from_numpy(generator(case.seed, f"empty_{name}").integers(0, 3, size=shape)) == 0
    drawn &= case.empty == "some"
    layout = case.layout.get(f"lse_{name}")
    if layout == FLAT:
        return drawn[:, :1].expand(shape)
    return drawn[:1].expand(shape) if layout == EXPANDED else drawn


def inputs(case: MergeCase) -> Inputs:
    """Poison in the values of empty parts, unless they share their memory with a part that has keys."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    given: Inputs = {}
    for name in ("a", "b"):
        size = min(case.size, torch.finfo(dtype).max)
        values = uniform(case.seed, f"v_{name}", (case.rows, case.heads, case.width), dtype, size)
        base = case.base if name == "a" or case.base_b is None else case.base_b
        lse = uniform(case.seed, f"lse_{name}", (case.rows, case.heads), scale=case.gap) + base
        empty = _empty(case, name)
        lse[empty] = -torch.inf
        if case.layout.get(f"v_{name}") not in REPEATED:
            values[empty] = poison_value(case.poison, dtype)
        given |= {f"v_{name}": values, f"lse_{name}": lse}
    for name, other in (("a", "b"), ("b", "a")) if case.silent else ():
        if case.layout.get(f"v_{name}") not in REPEATED:
            given[f"v_{name}"][given[f"lse_{name}"] > given[f"lse_{other}"]] = 0
    return given


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: case.rows * case.heads * case.width}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: case.rows == 0,
    "no width": lambda case: case.width == 0,
    "more rows of heads than 16 bits count": lambda case: case.rows * case.heads > 2**16,
    "more columns than 16 bits count": lambda case: case.width > 2**16 and case.rows > 0,
    "values whose sum float32 just holds": lambda case: case.size > 1e38 and not case.silent and case.rows * case.width > 0,
    "a partial vector": lambda case: case.width % 16 > 0,
    "some empty parts": lambda case: case.empty == "some" and case.rows * case.heads > 4,
    "both parts empty": lambda case: case.empty == "both" and case.rows > 0,
    "equal sums": lambda case: case.gap == 0,
    "the larger part is 0": lambda case: case.silent and case.gap == 40 and case.empty == "none" and case.rows * case.heads > 4,
    "a part without weight": lambda case: case.gap == 200 and case.empty == "none" and case.rows * case.heads > 4,
    "sums of thousands": lambda case: case.base == 3000,
    "parts of next to no weight": lambda case: case.base == -1e30 and case.empty == "none" and case.rows > 0,
    "parts further apart than int32 counts": lambda case: case.base_b is not None
    and abs(case.base - case.base_b) > 2**31 and case.empty == "none" and case.rows > 0,
    "parts further apart than float32 holds": lambda case: case.base_b is not None
    and abs(case.base - case.base_b) > 3.5e38 and case.empty == "none" and case.rows > 0,
    "one lse for all heads": lambda case: FLAT in (case.layout.get("lse_a"), case.layout.get("lse_b"))
    and case.heads > 1 and case.rows > 0,
    "sums near the end of float32": lambda case: case.base == -2e38 and case.empty == "none" and case.rows > 0,
    "strided lse": lambda case: case.layout.get("lse_b") in ("strided", "transposed"),
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
