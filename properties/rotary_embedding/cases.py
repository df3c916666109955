"""rotary_embedding: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import FAR, FAR_PARAMETERS, POOL, READ_ROWS
from kernelpair.call.values import generator, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import any_of, common, float_dtypes, shrinking, together

TOKENS = (1, 3, 0, 7, 17, 65)
CROWD = 300  # heads, more than a byte counts
HEADS = (  # of query and key; None: no key
    (1, 1), (3, 1), (4, 2), (32, 8), (2, None), (2, 2), (2, 3), (0, 1), (1, 0), (0, None), (0, 0), (CROWD, 1), (1, CROWD),
)  # fmt: skip
SIZES = (  # width of a head, part of it that is rotated
    (2, 2), (16, 16), (16, 6), (64, 64), (64, 32), (64, 20), (80, 32), (80, 80), (96, 24), (96, 96), (128, 128), (128, 40),
    (128, 64), (256, 64), (256, 256), (7, 2), (33, 16), (320, 288), (320, 300), (640, 640),
)  # fmt: skip
MOST_ELEMENTS = 1 << 15
WIDEST_CROWD = 64  # of many heads
MODELS = (  # tokens, heads, width, rotated part
    (1024, (4, 1), 128, 128), (65, (32, 8), 128, 128), (64, (16, 2), 256, 64), (33, (128, 1), 64, 64), (7, (40, 8), 160, 150),
    (66_000, (1, 0), 2, 2), (66_000, (0, 1), 2, 2),  # more tokens than 16 bits count
)  # fmt: skip
POSITIONS = 11  # rows of the table
MANY_POSITIONS = 70_000  # more than 16 bits count
WIDEST_TABLE = 64  # of so many; wider ones take memory
FACTORS = (1.0, 1.0, 1.0, 1.4375, 0.25, 40.0)  # of tables that also scale, as for longer contexts
HUGE = 1e30  # elements, where the dtype holds them
LARGEST_HALF = 1e4  # times cosines and sines up to 1, in float16
LAYOUTS = {"query": POOL, "key": POOL, "cos_sin_cache": READ_ROWS, "positions": (*FAR_PARAMETERS, FAR)}
INDICES = ("positions",)
FUSED = (("query", "key"), ("key", "query"))


@dataclass(frozen=True, kw_only=True)
class RotaryCase(Case):
    """Tokens with some heads, of which the first `rotary` elements are rotated."""

    tokens: int = 1
    heads: int = 1
    kv_heads: int | None = None
    """None: there is no key."""
    width: int = 2
    rotary: int = 2
    is_neox: bool = True
    wide: bool = False
    """The table in float32 beside 16-bit heads."""
    order: Literal["random", "rising", "falling", "first", "last"] = "random"
    """Of the positions."""
    table: int = POSITIONS
    """Rows of the table."""
    section: tuple[int, ...] = ()
    """Pairs of each of three axes; () for one axis."""
    interleaved: bool = False
    exact: bool = False
    """All angles are quarter turns: elements move and change their signs, and nothing is rounded."""
    factor: float = 1.0
    """Cosines and sines are so many times what they would be."""
    size: float = 1.0
    """Of the heads' elements."""


FIELDS = together({
    "dtype": float_dtypes,
    **common(LAYOUTS, INDICES, FUSED),
    "is_neox": any_of(True, False),
    "wide": any_of(False, True),
    "order": any_of("random", "rising", "falling", "first", "last"),
    "interleaved": any_of(False, True),
    "exact": any_of(False, False, False, True),
    "size": any_of(1.0, 1e-3, 30.0, HUGE),
    "factor": any_of(*FACTORS),
})


@st.composite
def strategy(draw: st.DrawFn) -> RotaryCase:
    """Any sizes, pairings, axes, layouts and dtypes that the contract allows."""
    fields, (heads, kv_heads) = draw(FIELDS), draw(any_of(*HEADS), label="heads")
    (width, rotary), tokens = draw(any_of(*SIZES), label="width, rotary"), draw(any_of(*TOKENS), label="tokens")
    if CROWD in (heads, kv_heads) and width > WIDEST_CROWD:
        width, rotary = WIDEST_CROWD, min(rotary, WIDEST_CROWD)
    if tokens * max(heads, kv_heads or 0) * width > MOST_ELEMENTS:
        tokens = 3
    return completed(draw, fields, tokens, (heads, kv_heads), width, rotary)


def completed(
    draw: st.DrawFn, fields: dict[str, Any], tokens: int, heads: tuple[int, int | None], width: int, rotary: int
) -> RotaryCase:
    """The case of these sizes, with or without sections."""
    sections = [_sections(rotary // 2, *sixths) for sixths in ((2, 2), (4, 1), (3, 1), (1, 3), (6, 0), (0, 6), (0, 0))]
    small = rotary <= WIDEST_TABLE and fields["layout"].get("cos_sin_cache") != FAR
    tables = (POSITIONS, MANY_POSITIONS) if rotary == 2 else (*[POSITIONS] * 15, MANY_POSITIONS)
    if fields["exact"]:
        fields = fields | {"factor": 1.0}
    table = draw(any_of(*tables), label="table") if small else POSITIONS
    section = draw(any_of((), (), *sections), label="section")
    if section and fields["seed"] % 16 == 5:
        fields["layout"] = fields["layout"] | {"positions": FAR}  # its axes
    return RotaryCase(
        **fields,
        tokens=tokens,
        heads=heads[0],
        kv_heads=heads[1],
        width=width,
        rotary=rotary,
        table=table,
        section=section,
    )


def _sections(pairs: int, sixths: int, more: int) -> tuple[int, int, int]:
    """The first axis has so many sixths of the pairs, the second so many more, the third the rest: where the first has half of
    them turns end early."""
    first, second = pairs * sixths // 6, pairs * more // 6
    return first, second, pairs - first - second


@cache
def models(slow: bool) -> st.SearchStrategy[RotaryCase]:
    """Heads of models: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> RotaryCase:
    fields, (tokens, (heads, kv_heads), width, rotary) = draw(FIELDS), draw(any_of(*MODELS), label="sizes")
    tokens, heads, kv_heads = draw(shrinking(tokens)), draw(shrinking(heads)), draw(shrinking(kv_heads))
    width = draw(shrinking(width, 2))
    return completed(draw, fields, tokens, (heads, kv_heads), width, min(2 * draw(shrinking(rotary // 2)), width // 2 * 2))


def _positions(case: RotaryCase) -> Tensor:
    shape = (3, case.tokens) if case.section else (case.tokens,)
    if case.order == "random":
        return torch.from_numpy(generator(case.seed, "positions").integers(0, case.table, size=shape))
    if case.order in ("first", "last"):
        return torch.full(shape, 0 if case.order == "first" else case.table - 1)
    counted = torch.arange(case.tokens) + torch.tensor([[0], [4], [7]] if case.section else 0)
    return (counted if case.order == "rising" else -counted) % case.table


def _cache(case: RotaryCase) -> Tensor:
    """Cosines and sines of angles that differ in every pair of every row; row 0 is the identity."""
    pairs = case.rotary // 2
    if case.exact:
        turns = torch.from_numpy(generator(case.seed, "turns").integers(0, 4, size=(case.table, pairs)))
        cos, sin = torch.tensor([1.0, 0.0, -1.0, 0.0])[turns], torch.tensor([0.0, 1.0, 0.0, -1.0])[turns]
    else:
        angles = uniform(case.seed, "angles", (case.table, pairs), scale=torch.pi)
        angles[0] = 0
        cos, sin = angles.cos() * case.factor, angles.sin() * case.factor
    return torch.cat([cos, sin], dim=-1).to(torch.float32 if case.wide else getattr(torch, case.dtype))


def _size(case: RotaryCase) -> float:
    """Of the elements: no result is beyond the dtype."""
    return min(case.size, LARGEST_HALF / max(case.factor, 1.0)) if case.dtype == "float16" else case.size


def inputs(case: RotaryCase) -> Inputs:
    """The same numbers whatever the layouts."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    given: Inputs = {"positions": _positions(case)}
    for name, heads in (("query", case.heads), ("key", case.kv_heads)):
        shape = (case.tokens, heads or 0, case.width)
        given[name] = None if heads is None else uniform(case.seed, name, shape, dtype, _size(case))
    return given | {
        "cos_sin_cache": _cache(case),
        "is_neox": case.is_neox,
        "mrope_section": list(case.section) or None,
        "mrope_interleaved": case.interleaved,
    }


def rotated(case: Any, given: Inputs) -> Tensor:
    """Of the columns of a head: those that are written."""
    return torch.arange(given["query"].shape[-1]) < given["cos_sin_cache"].shape[-1]


def _elements(case: Any) -> int:
    heads: int = case.heads + (case.kv_heads or 0)
    return case.tokens * heads * case.rotary


MEASURES: dict[str, Callable[[Any], int]] = {"elements": _elements, "pairs": lambda case: case.rotary // 2}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no tokens": lambda case: case.tokens == 0,
    "no query heads": lambda case: case.heads == 0,
    "no key": lambda case: case.kv_heads is None,
    "fewer key heads": lambda case: bool(case.kv_heads) and case.kv_heads < case.heads,
    "whole heads": lambda case: case.rotary == case.width,
    "parts of heads": lambda case: case.rotary < case.width,
    "one pair": lambda case: case.rotary == 2,
    "a partial vector": lambda case: case.rotary // 2 % 16 > 0 and case.rotary > 32,
    "neighbours, a partial vector": lambda case: not case.is_neox and case.rotary % 16 > 0 and case.rotary > 16,
    "key apart where query is not": lambda case: bool(case.kv_heads)
    and case.layout.get("key") in ("padded", "sliced") and "query" not in case.layout,
    "heads side by side, tokens apart": lambda case: case.tokens > 1
    and "apart" in (case.layout.get("query"), case.layout.get("key")),
    "query and key in one buffer": lambda case: "fused" in case.layout.values() and case.kv_heads == case.heads > 0,
    "key behind more heads of query": lambda case: case.layout.get("query") == "fused" and 0 < (case.kv_heads or 0) < case.heads,
    "three axes in blocks": lambda case: bool(case.section) and not case.interleaved and case.rotary > 6,
    "three axes in turn": lambda case: bool(case.section) and case.interleaved and case.rotary > 6,
    "positions of three axes far apart": lambda case: case.section != ()
    and case.layout.get("positions") == FAR and case.tokens > 0,
    "strided positions of three axes": lambda case: bool(case.section)
    and case.layout.get("positions") in ("strided", "transposed"),
    "a float32 table beside 16 bits": lambda case: case.wide and case.dtype != "float32",
    "quarter turns": lambda case: case.exact,
    "cosines and sines beyond 1": lambda case: case.factor > 1 and case.tokens > 1,
    "huge elements": lambda case: case.size == HUGE and not case.exact and case.tokens * case.heads > 0,
    "more heads than a byte counts": lambda case: CROWD in (case.heads, case.kv_heads) and case.tokens > 0,
    "positions of wide tables past 16 bits": lambda case: case.table > 2**16 and case.rotary > 2 and case.tokens > 0,
    "the last position": lambda case: case.order == "last" and case.tokens > 0,
    "positions past 16 bits": lambda case: case.table > 2**16 and case.order == "last" and case.tokens > 0,
    "falling positions": lambda case: case.order == "falling" and case.tokens > 2,
    "neox": lambda case: case.is_neox,
    "gpt-j": lambda case: not case.is_neox,
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
