"""quantize_rows_int8: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.quantize_rows_int8 as optimized
import reference.quantize_rows_int8 as reference
from kernelpair.call.layout import READ_ROWS
from kernelpair.call.values import generator, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import any_of, around, between, common, either, float_dtypes, near, shrinking, together

RESULTS = ("q", "scale", "azp")
ROWS = (1, 2, 3, 5, 33, 133, 0)
WIDTHS = (1, 3, *around(16, 32, 64), 11, 22, 60, 96, 1023, *around(4096), 2069, 0)
MODELS = ((1024, 300), (64, 4096), (33, 14_336), (1, 65_536), (2049, 80))
LONG = ((66_000, 1), (1, 300_000))  # rows, width of one case in 32 each: more than 16 bits count
VALUES = ("uniform", "ties", "one_sign", "outlier", "floor", "largest", "widest")
MAGNITUDES = (1.0, 1e-3, 1e2, 3e4)
LAYOUTS = {"x": READ_ROWS}
LOWEST, HIGHEST = -100, 155  # of ties in asymmetric rows: 255 steps apart


@dataclass(frozen=True, kw_only=True)
class QuantizeCase(Case):
    """x [rows, width], of a row of which the largest magnitude or the range becomes the scale."""

    rows: int = 1
    width: int = 1
    symmetric: bool = True
    values: Literal["uniform", "ties", "one_sign", "outlier", "floor", "largest", "widest"] = "uniform"
    """`ties`: halves of a scale that is a power of 2; `outlier`: one value that dwarfs the others, so that they share few codes;
    `floor`: rows of zeros, and rows around 1e-7; `largest`: each row holds the largest number of the dtype, and none
    below 0; `widest`: that of either sign, whose range may be infinite."""
    magnitude: float = 1.0


FIELDS = together({
    **common(LAYOUTS, []),
    "dtype": float_dtypes,
    "symmetric": either,
    "values": any_of(*VALUES),
    "magnitude": any_of(*MAGNITUDES),
})  # fmt: skip


@st.composite
def strategy(draw: st.DrawFn) -> QuantizeCase:
    """Any rows, values and strides."""
    fields = draw(FIELDS)
    rows, width = draw(any_of(*ROWS), label="rows"), draw(any_of(*WIDTHS), label="width")
    rare = draw(between(0, 31), label="rare")
    if rare >= 30:
        fields, (rows, width) = near(fields), LONG[rare - 30]
    return QuantizeCase(**fields, rows=rows, width=width)


@cache
def models(slow: bool) -> st.SearchStrategy[QuantizeCase]:
    """A prompt, hidden layers and a wide one: two passes over memory, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> QuantizeCase:
    fields, (rows, width) = draw(FIELDS), draw(any_of(*MODELS), label="rows, width")
    return QuantizeCase(**fields, rows=draw(shrinking(rows), label="rows"), width=draw(shrinking(width), label="width"))


def place_ends(codes: npt.NDArray[Any], drawn: np.random.Generator, low: int, high: int) -> None:
    """The ends of the range among the codes of every row: the highest one alone where the row is symmetric, or too narrow."""
    width = codes.shape[1]
    last = int(drawn.integers(0, width))
    if low != -high:
        codes[:, (last + 1) % width] = low
    codes[:, last] = high


def tied_rows(case_seed: int, rows: int, width: int, symmetric: bool) -> Tensor:
    """Whole and half codes times powers of 2, with the ends of the range among them: scales are exact, and halves are ties."""
    drawn = generator(case_seed, "ties")
    low, high = (-127, 127) if symmetric else (LOWEST, HIGHEST)
    codes = drawn.integers(2 * low, 2 * high, size=(rows, width), endpoint=True) / 2
    if width:
        place_ends(codes, drawn, low, high)
    steps = 2.0 ** drawn.integers(-8, 0, size=(rows, 1))
    return torch.from_numpy(codes * steps).to(torch.float32)


def values_of(seed: int, rows: int, width: int, values: str, symmetric: bool, magnitude: float) -> Tensor:
    """x in float32, before it is rounded to the case's dtype."""
    if values == "ties":
        return tied_rows(seed, rows, width, symmetric)
    x = uniform(seed, "x", (rows, width), scale=magnitude)
    if values == "one_sign":
        signs = torch.where(torch.arange(rows) % 2 == 0, 1.0, -1.0)
        return (x.abs() + magnitude / 2) * signs[:, None]
    if values == "outlier" and width:
        x[:, seed % width] *= 1000.0 / max(magnitude, 1.0)
    if values == "floor":
        sizes = torch.tensor([0.0, 1e-7, 3e-8, 2e-7])[torch.arange(rows) % 4]
        return x / magnitude * sizes[:, None]
    return x


def inputs(case: QuantizeCase) -> Inputs:
    """Values whose codes the contract fixes."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    x = values_of(case.seed, case.rows, case.width, case.values, case.symmetric, case.magnitude)
    if case.values in ("largest", "widest") and case.width:
        x = x / case.magnitude
        x = x.abs() if case.values == "largest" else x
        if case.values == "widest":
            x[:, (case.seed + 1) % case.width] = -1
        x[:, case.seed % case.width] = 1
        x *= torch.finfo(dtype).max
    return {"x": x.to(dtype), "symmetric": case.symmetric}


def _named(results: tuple[Tensor, Tensor, Tensor | None]) -> dict[str, Tensor]:
    return {name: value for name, value in zip(RESULTS, results) if value is not None}


def call_reference(x: Tensor, symmetric: bool = True) -> dict[str, Tensor]:
    """The results by name; azp is missing where there is none."""
    return _named(reference.quantize_rows_int8(x, symmetric))


def call_optimized(x: Tensor, symmetric: bool = True) -> dict[str, Tensor]:
    """The kernel's, likewise."""
    return _named(optimized.quantize_rows_int8(x, symmetric))


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: case.rows * case.width}
EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: case.rows == 0,
    "no columns": lambda case: case.width == 0,
    "a partial vector": lambda case: case.width % 16 > 0,
    "one row for all": lambda case: case.layout.get("x") == "expanded" and case.rows > 1,
    "rows apart": lambda case: case.layout.get("x") in ("padded", "apart", "sliced") and case.rows > 1,
    "ties, symmetric": lambda case: case.values == "ties" and case.symmetric and case.rows * case.width > 8,
    "ties, asymmetric": lambda case: case.values == "ties" and not case.symmetric and case.rows * case.width > 8,
    "one sign, asymmetric": lambda case: case.values == "one_sign" and not case.symmetric and case.rows > 1,
    "zeros": lambda case: case.values == "floor" and case.rows > 0,
    "an infinite range": lambda case: case.values == "widest" and not case.symmetric and case.width > 1
    and case.rows > 0 and case.dtype != "float16",
    **{f"dtype {d}": lambda case, d=d: case.dtype == d for d in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
}
