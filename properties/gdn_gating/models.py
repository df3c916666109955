"""gdn_gating: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.gdn_gating.cases import FIELDS, MANY_ROWS, GatingCase, completed
from properties.shared.strategies import any_of, shrinking

SHAPES = ((2048, 32), (1030, 64), (256, 128), (4100, 16), (MANY_ROWS, 1))  # tokens, heads


@cache
def models(slow: bool) -> st.SearchStrategy[GatingCase]:
    """Prompts of thousands of tokens: elementwise, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> GatingCase:
    fields, (rows, heads) = draw(FIELDS), draw(any_of(*SHAPES), label="rows, heads")
    return completed(draw, fields, draw(shrinking(rows), label="rows"), draw(shrinking(heads), label="heads"))


MEASURES: dict[str, Callable[[Any], int]] = {"elements": lambda case: case.rows * case.heads}
