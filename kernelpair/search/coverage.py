"""Cells of a pair's case space: each dtype, layout of an argument, index dtype, and each value of a flag or of a choice."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from kernelpair.call.layout import FUSED
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair

DRAWN_APART = ("dtype", "layout", "int32", "trial")  # have cells of their own, or are counted as trials


def cells(pair: Pair) -> list[str]:
    """All cells, in the order of the case's fields."""
    named = [f"dtype {dtype}" for dtype in pair.signature.dtypes]
    named += [f"{argument} {layout}" for argument, layouts in pair.signature.layouts.items() for layout in ("dense", *layouts)]
    named += [f"{first} {FUSED}" for first, _ in pair.signature.fused]
    named += [f"{index} {width}" for index in pair.signature.indices for width in ("int32", "int64")]
    return [*named, *(f"{name} {value}" for name, values in _choices(pair).items() for value in values)]


def hit(pair: Pair, case: Case) -> Iterator[str]:
    """The cells that a case lies in."""
    yield f"dtype {case.dtype}"
    for argument in pair.signature.layouts:
        yield f"{argument} {case.layout.get(argument, 'dense')}"
    for first, _ in pair.signature.fused:
        if first not in pair.signature.layouts and case.layout.get(first) == FUSED:
            yield f"{first} {FUSED}"
    for index in pair.signature.indices:
        yield f"{index} {'int32' if index in case.int32 else 'int64'}"
    for name in _choices(pair):
        yield f"{name} {getattr(case, name)}"


def crossed(pair: Pair, case: Case) -> Iterator[str]:
    """The dtype of a case with the layout of each argument: `dtype argument layout`."""
    for argument in pair.signature.layouts:
        yield f"{case.dtype} {argument} {case.layout.get(argument, 'dense')}"


def sizes(case: Case) -> Iterator[tuple[str, int]]:
    """The fields of a case that are numbers of something, and of a sequence of them the sum."""
    for name in _sized(type(case)):  # type: ignore[arg-type]
        value = getattr(case, name)
        if type(value) is int:
            yield name, value
        elif isinstance(value, tuple) and all(type(each) is int for each in value):
            yield f"sum of {name}", sum(value)


@cache
def _sized(case_type: type[Case]) -> tuple[str, ...]:
    return tuple(spec.name for spec in fields(case_type) if spec.name not in (*DRAWN_APART, "seed", "poison", "guard"))


def _choices(pair: Pair) -> dict[str, tuple[Any, ...]]:
    """Field -> its possible values, of fields that have few: flags and choices of words."""
    return {name: values for name, values in _few(pair.cases.type).items() if name not in pair.cases.constant}  # type: ignore[arg-type]


@cache
def _few(case_type: type[Case]) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(case_type)
    found: dict[str, tuple[Any, ...]] = {}
    for spec in fields(case_type):
        kind = hints[spec.name]
        if spec.name in DRAWN_APART:
            continue
        if kind is bool:
            found[spec.name] = (False, True)
        elif get_origin(kind) is Literal:
            found[spec.name] = get_args(kind)
        elif NoneType in get_args(kind) and bool in get_args(kind):
            found[spec.name] = (None, False, True)
    return found
