"""act_and_mul: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st

from kernelpair.call.layout import EXPANDED, READ_ROWS
from kernelpair.call.values import generator, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import any_of, around, between, common, float_dtypes, near, shrinking, together
from reference.act_and_mul import ACTIVATIONS

OUTER = ((1,), (3,), (2,), (33,), (0,), (), (3, 2), (5, 7), (2, 3, 2), (3, 2, 5), (1100,))
WIDTHS = (1, 7, *around(8, 16, 32, 64), 12, 22, 27, 45, 0, 2880, 14336)  # of a half
MOST_ELEMENTS = 1 << 15
MANY = 70_000  # rows of one column, or columns of one row, of one case in 64 each: more than 16 bits count
LONG = (MANY,)
MODELS = (((3,), 14336), ((33,), 768), ((17,), 2880), ((9,), 2048), ((130, 2), 96), (LONG, 1))
SPECIAL = (0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 20.0, -20.0, 40.0, -40.0, -65.0, -80.0, -88.0, -90.0, 1e4, -1e4, 3e38, -3e38)
LARGEST = {"float16": 3e4}  # of |x|, where 3e38 has no number
STEEP = 3.0  # from here down f(z) is small
HUGE = 3e38  # a number that only a small f(z) leaves in the range
LAYOUTS = {"x": READ_ROWS}


@dataclass(frozen=True, kw_only=True)
class ActCase(Case):
    """Rows of two halves of `width` columns."""

    activation: str = "silu"
    outer: tuple[int, ...] = (1,)
    width: int = 1
    size: float = 1.0
    """Of what goes through the activation, where it is not special."""
    special: bool = False
    """A third of that are numbers at which activations change their ways."""
    other: float = 1.0
    """Of what it is multiplied by. Beside huge numbers what goes through the activation is -3 or less: f(z) y fits, and z y need
    not."""


FIELDS = together({
    "dtype": float_dtypes,
    **common(LAYOUTS, []),
    "activation": any_of(*ACTIVATIONS),
    "size": any_of(1.0, 4.0, 0.1, 12.0, 48.0),
    "special": any_of(False, True),
    "other": any_of(1.0, 1e-3, 1.0, HUGE),
})


@st.composite
def strategy(draw: st.DrawFn) -> ActCase:
    """Any sizes, layouts and dtypes that the contract allows."""
    fields = draw(FIELDS)
    outer, width = draw(any_of(*OUTER), label="outer"), draw(any_of(*WIDTHS), label="width")
    rare = draw(between(0, 63), label="rare")
    if rare >= 62:
        outer, width = (LONG, 1) if rare == 63 else ((1,), MANY)
        return completed(near(fields), outer, width)
    return completed(fields, outer if prod(outer) * width <= MOST_ELEMENTS else (2,), width)


def completed(fields: dict[str, Any], outer: tuple[int, ...], width: int) -> ActCase:
    """The case of these sizes; the only dimension of a single row is the last one, which is dense."""
    if not outer:
        fields = fields | {"layout": {name: kind for name, kind in fields["layout"].items() if kind != EXPANDED}}
    if fields["other"] == HUGE:
        fields = fields | {"special": False}
    return ActCase(**fields, outer=outer, width=width)


@cache
def models(slow: bool) -> st.SearchStrategy[ActCase]:
    """Intermediate sizes of models: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> ActCase:
    fields, (outer, width) = draw(FIELDS), draw(any_of(*MODELS), label="sizes")
    return completed(fields, tuple(draw(shrinking(n)) for n in outer), draw(shrinking(width)))


def inputs(case: ActCase) -> Inputs:
    """Where the first half is large the second is small: all results are within half of the dtype's range."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape = (*case.outer, case.width)
    other = min(case.other, torch.finfo(dtype).max)
    gate, up = uniform(case.seed, "gate", shape, scale=case.size), uniform(case.seed, "up", shape, scale=other)
    if case.other == HUGE:
        gate = -STEEP - gate.abs()
    if case.special:
        draw = generator(case.seed, "special")
        chosen = torch.from_numpy(draw.integers(0, len(SPECIAL), size=shape))
        values = torch.tensor(SPECIAL, dtype=torch.float64)[chosen].float()
        most = LARGEST.get(case.dtype)
        values = values if most is None else values.clamp(-most, most)
        gate = torch.where(torch.from_numpy(draw.integers(0, 3, size=shape)) == 0, values, gate)
        up = torch.where(gate.abs() > 1000, up / 4, up)
    return {"x": torch.cat([gate, up], dim=-1).to(dtype), "activation": case.activation}


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: prod(case.outer) * case.width}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: prod(case.outer) == 0,
    "more rows than 16 bits count": lambda case: prod(case.outer) > 2**16 and case.width > 0,
    "no columns": lambda case: case.width == 0,
    "more columns than 16 bits count": lambda case: case.width == MANY,
    "a partial vector": lambda case: case.width % 16 > 0,
    "one row, of one dimension": lambda case: case.outer == () and case.width > 16,
    "rows apart": lambda case: case.layout.get("x") in ("padded", "apart", "sliced") and prod(case.outer) > 1,
    "one row for all": lambda case: case.layout.get("x") == EXPANDED and prod(case.outer) > 1,
    "z y beyond float32": lambda case: case.other == HUGE and case.dtype != "float16",
    "on both sides of where silu is z": lambda case: case.size > 32 and case.activation == "silu",
    **{f"special numbers through {name}": lambda case, name=name: case.special and case.activation == name  # type: ignore[misc]
       for name in ACTIVATIONS},
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
