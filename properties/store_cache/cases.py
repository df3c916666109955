"""store_cache: what is drawn, and the arguments of a case."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import FAR_VECTOR, POOL, READ_ROWS
from kernelpair.call.values import any_bits, poison
from kernelpair.contract.pair import Inputs
from properties.shared.every_value import DTYPES as DTYPES_OF_16_BITS
from properties.shared.every_value import SweepCase, every_value, halves
from properties.shared.pads import drawn_pad, entry_of, free_slots, named
from properties.shared.strategies import any_of, around, between, common, either, near, together
from reference.checks import are_pads

DTYPES = ("bfloat16", "float16", "float32", "uint8", "float8_e4m3fn", "float8_e5m2")
ROWS = (0, 1, 2, 3, 5, 17, 70, 133)  # 133: more rows than any thread's share of a small call
ROW_SIZES = ((1, 1), *((1, n) for n in around(16, 32, 64, 128)), (2, 32), (3, 43), (2, 64), (5, 16), (7, 9), (8, 32))  # (H, D)
MANY_SLOTS = (4099, 2**16 + 1100)  # of small rows: most are nobody's, and those that are written lie anywhere, or past 2^16
MANY_ROWS = (64, 128, 256, 1024)  # of so many slots
# With elements of 2 bytes more than a cache keeps: in long runs, and in runs shorter than a cache line.
LARGE = (
    {"rows": 133, "heads": 2, "width_k": 4003, "width_v": 4003},
    {"rows": 1300, "heads": 64, "width_k": 13, "width_v": 13},
    {"rows": 1300, "heads": 6, "width_k": 192, "width_v": 128},
)
RUNS = (1, 2, 3, 5, 7, 9, 31)  # elements of one run, of as many bytes in all
WIDTHS = ((0, 0), (64, 64), (192, 128), (33, 1), (0, 5), (7, 0))  # Dk, Dv that differ; a cache of zero width
SWEEP: dict[str, Any] = {"rows": 128, "heads": 2, "width_k": 256, "width_v": 256}  # 65,536 elements
PADS = (-7, -1)  # entries to be skipped; a slot inside the cache is tried too
LAYOUTS = {
    "k": READ_ROWS,
    "v": READ_ROWS,
    "k_cache": POOL,
    "v_cache": POOL,
    "indices": FAR_VECTOR,
}
FUSED = (("k", "v"), ("k_cache", "v_cache"), ("v_cache", "k_cache"))


@dataclass(frozen=True, kw_only=True)
class StoreCacheCase(SweepCase):
    """Rows [N, H, Dk] and [N, H, Dv] into P = N + spare slots."""

    rows: int = 1
    heads: int = 1
    width_k: int = 1
    width_v: int = 1
    spare: int = 0
    """Slots beyond the rows; they must stay as they are."""
    pads: tuple[int, ...] = ()
    """Rows whose index is the pad."""
    pad_in_range: bool = False
    """The pad is a slot that exists (the last one or the first) instead of a negative number."""
    ascending: bool = False
    """Slots ascend, but for those of pads; else they come in any order."""


@st.composite
def _sizes(draw: st.DrawFn) -> dict[str, Any]:
    heads, width = draw(any_of(*ROW_SIZES))
    if draw(between(0, 3)) < 3:
        return {"heads": heads, "width_k": width, "width_v": width}
    width_k, width_v = draw(any_of(*WIDTHS))
    return {"heads": heads if heads * width <= 64 else 1, "width_k": width_k, "width_v": width_v}


FIELDS = together({"dtype": st.sampled_from(DTYPES), **common(LAYOUTS, ["indices"], FUSED)})
SIZES = _sizes()


@st.composite
def strategy(draw: st.DrawFn) -> StoreCacheCase:
    """Any rows, sizes, dtype, pads and layouts that the contract allows."""
    fields = draw(FIELDS)
    sizes = {"rows": draw(any_of(*ROWS[1:], *ROWS[:1]), label="rows"), **draw(SIZES)}
    if draw(between(0, 15), label="many") == 15:
        rows, heads, width = draw(any_of(*MANY_ROWS)), draw(any_of(1, 1, 5)), draw(any_of(1, 4))
        sizes = {"rows": rows, "heads": heads, "width_k": width, "width_v": 1}
        return completed(draw, near(fields), sizes, draw(any_of(*MANY_SLOTS)) - rows)
    large = draw(between(0, 63), label="large") - 61  # which of LARGE, from 0 on
    sizes = _large(large, fields["dtype"]) if large >= 0 else sizes
    if large == 1:
        fields["layout"] = {"k": "sliced", **fields["layout"]}  # its heads are no single run
        width = draw(any_of(sizes["width_k"], *RUNS), label="run")
        sizes |= {"rows": sizes["rows"] * sizes["width_k"] // width, "width_k": width, "width_v": width}
    return completed(draw, fields, sizes)


def _large(which: int, dtype: str) -> dict[str, Any]:
    """Of elements of 1 byte twice as many, and one: runs of an odd number of bytes."""
    more = getattr(torch, dtype).itemsize == 1
    return {name: 2 * size + 1 if more and "width" in name else size for name, size in LARGE[which].items()}


def completed(draw: st.DrawFn, fields: dict[str, Any], sizes: dict[str, Any], more: int = 0) -> StoreCacheCase:
    """The case of these sizes, with pads, and so many more slots."""
    rows, pads = sizes["rows"], draw(any_of("none", "none", "some", "all"), label="pads")
    chosen = named(pads, fields["seed"], rows)
    spare = draw(between(0, 3), label="spare") + more
    in_range = pads != "none" and spare > 0 and draw(either)
    return StoreCacheCase(
        **fields, **sizes, spare=spare, pads=chosen, pad_in_range=in_range, ascending=draw(either, label="ascending")
    )


@st.composite
def sweeps(draw: st.DrawFn) -> StoreCacheCase:
    """Every bit pattern of 16 bits in k and in v."""
    fields = draw(FIELDS) | {"dtype": draw(any_of(*DTYPES_OF_16_BITS), label="dtype")}
    fields["layout"] = {name: layout for name, layout in fields["layout"].items() if layout != "expanded"}
    return StoreCacheCase(**fields, **SWEEP, every=True)


def simpler(case: StoreCacheCase) -> Iterator[StoreCacheCase]:
    """Of a sweep its halves, down to one value."""
    yield from halves(case, "rows", case.heads * case.width_k)
    if case.rows == 1:
        yield from halves(case, "heads", case.width_k)
    if case.rows == case.heads == 1:
        yield from (replace(half, width_v=half.width_k) for half in halves(case, "width_k", 1))


def _bits(case: StoreCacheCase, name: str, shape: tuple[int, ...]) -> Tensor:
    if case.every:
        return every_value(case, shape, finite=False)
    return any_bits(case.seed, name, shape, getattr(torch, case.dtype))


def _slots(case: StoreCacheCase) -> int:
    return max(case.rows + case.spare, 1)


def _pad_slot(case: StoreCacheCase) -> int | None:
    return drawn_pad(case, "indices", _slots(case), _outside(case))


def _outside(case: StoreCacheCase) -> int:
    return PADS[case.seed // 5 % len(PADS)]


def inputs(case: StoreCacheCase) -> Inputs:
    """Rows of arbitrary bits, a cache of poison, and distinct slots."""
    dtype = getattr(torch, case.dtype)
    indices = free_slots(case, _slots(case), "indices")[: case.rows]
    if case.ascending:
        indices = indices.sort().values
        if case.rows > 3 and case.seed // 6 % 2:  # but for two neighbours that its ends do not show
            middle = case.rows // 2
            indices[[middle - 1, middle]] = indices[[middle, middle - 1]]
    indices[list(case.pads)] = entry_of(_pad_slot(case), _outside(case))
    k, v = (case.rows, case.heads, case.width_k), (case.rows, case.heads, case.width_v)
    return {
        "k": _bits(case, "k", k),
        "v": _bits(case, "v", v),
        "k_cache": poison(case.poison, (_slots(case), *k[1:]), dtype),
        "v_cache": poison(case.poison, (_slots(case), *v[1:]), dtype),
        "indices": indices,
        "pad_slot": _pad_slot(case),
    }


def written(case: StoreCacheCase, inputs: Inputs) -> Tensor:
    """Slots that an index other than the pad names."""
    mask = torch.zeros(_slots(case), 1, 1, dtype=torch.bool)
    indices = inputs["indices"]
    mask[indices[~are_pads(indices, inputs["pad_slot"])].long()] = True
    return mask


EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: case.rows == 0,
    "one slot": lambda case: _slots(case) == 1,
    "all rows are pads": lambda case: 0 < case.rows == len(case.pads),
    "some rows are pads": lambda case: 0 < len(case.pads) < case.rows,
    "pad is a slot in range": lambda case: case.pad_in_range,
    "pad is slot 0 of several": lambda case: case.pad_in_range and _pad_slot(case) == 0 and _slots(case) > 1,
    "slots far between": lambda case: case.spare > 1000 and not case.ascending,
    "more slots than 16 bits count": lambda case: case.rows + case.spare > 2**16 and len(case.pads) < case.rows,
    "an odd number of heads": lambda case: case.heads in (5, 7),
    "ascending slots": lambda case: case.ascending and case.rows > 64 and not case.pads,
    "Dk = 0": lambda case: case.width_k == 0,
    "Dv = 0": lambda case: case.width_v == 0,
    "Dk != Dv": lambda case: case.width_k != case.width_v,
    "fused caches": lambda case: case.layout.get("k_cache") == "fused" and case.width_k > 0 < case.width_v,
    "int32 indices": lambda case: "indices" in case.int32,
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in DTYPES},  # type: ignore[misc]
}
