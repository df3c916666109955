"""Every value of a 16-bit dtype, one after another: an elementwise kernel may be wrong for a single one of the 65,536."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from kernelpair.contract.case import Case, at_least

PATTERNS = 1 << 16
DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class SweepCase(Case):
    """A case that may hold every value instead of values by chance."""

    every: bool = False
    """The inputs count through all values of the dtype."""
    first: Annotated[int, at_least(0)] = 0
    """Of these, the one to begin with."""


SWEEP_FIELDS = ("every", "first")
SweepCaseT = TypeVar("SweepCaseT", bound=SweepCase)


@cache
def patterns(dtype: torch.dtype, finite: bool) -> Tensor:
    """Every bit pattern as a value, or every finite one."""
    if dtype.itemsize != 2:
        raise ValueError(f"dtype must have 16 bits, not {dtype}")
    values = torch.arange(PATTERNS, dtype=torch.int32).to(torch.uint16).view(dtype)
    return values[values.float().isfinite()] if finite else values


def set_sign(values: Tensor, place: Any) -> None:
    """Set the sign bits there, those of NaN too, whose sign torch loses where it rounds: x86 makes NaN with that bit set."""
    bits = _bits(values)
    bits[place] |= torch.iinfo(bits.dtype).min


def make_signalling(values: Tensor, place: Any) -> None:
    """Make the NaN there one of its sign that is not quiet and next to infinity, as memory may hold that nobody computed."""
    bits = _bits(values)
    infinity = int(_bits(values.new_full((), torch.inf)))
    bits[place] = bits[place] & torch.iinfo(bits.dtype).min | infinity | 1


def _bits(values: Tensor) -> Tensor:
    return values.view({2: torch.int16, 4: torch.int32}[values.dtype.itemsize])


def every_value(case: SweepCase, shape: tuple[int, ...], *, finite: bool) -> Tensor:
    """The values from the case's first one on, as often around as the shape has room for."""
    values = patterns(getattr(torch, case.dtype), finite)
    count = torch.Size(shape).numel()
    return values[(torch.arange(count) + case.first) % len(values)].reshape(shape)


def halves(case: SweepCaseT, dimension: str, step: int) -> Iterator[SweepCaseT]:
    """The first and the second half of a sweep along a dimension, `step` values for each of its entries."""
    size = getattr(case, dimension)
    if case.every and size > 1:
        yield replace(case, **{dimension: size // 2})
        rest: dict[str, Any] = {dimension: size - size // 2, "first": case.first + size // 2 * step}
        yield replace(case, **rest)
