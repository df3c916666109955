"""gated_delta_rule_update: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.gated_delta_rule_update.cases import FIELDS, DeltaCase, completed
from properties.shared.strategies import any_of, shrinking

WIDTH = 128  # K and V
SHAPES = ((1, 16, 2), (1, 17, 4), (2, 4, 2), (2, 2, 4), (8, 1, 2), (17, 1, 1))  # requests, key heads, value heads of each
MANY = (256, 1, 3)  # with a width of 16


@cache
def models(slow: bool) -> st.SearchStrategy[DeltaCase]:
    """States of 128 x 128, of many heads or many requests: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> DeltaCase:
    fields, shape = draw(FIELDS), draw(any_of(*SHAPES, MANY), label="requests, heads")
    width = 16 if shape == MANY else WIDTH
    names = ("requests", "key_heads", "group", "key_size", "value_size")
    return completed(draw, fields, {name: draw(shrinking(size), label=name) for name, size in zip(names, (*shape, width, width))})


MEASURES: dict[str, Callable[[Any], int]] = {
    "width": lambda case: case.key_size,
    "rows": lambda case: case.value_size,
    "elements": lambda case: case.requests * case.key_heads * case.group * case.key_size * case.value_size,
}
