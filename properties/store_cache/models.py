"""store_cache: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.shared.models import dtype_bytes
from properties.shared.strategies import any_of, shrinking
from properties.store_cache.cases import FIELDS, StoreCacheCase, completed

SHAPES = ((300, 8, 128, 128), (70, 32, 128, 128), (2, 32, 256, 256), (2100, 1, 64, 64), (1030, 1, 576, 0), (256, 16, 64, 64),
          (40, 28, 192, 128), (2, 71, 64, 64))  # rows, heads, Dk, Dv


@cache
def models(slow: bool) -> st.SearchStrategy[StoreCacheCase]:
    """8 to 71 heads, thousands of rows, rows of a latent: bytes that move, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> StoreCacheCase:
    fields, (rows, heads, width_k, width_v) = draw(FIELDS), draw(any_of(*SHAPES), label="rows, heads, widths")
    sizes = {
        "rows": draw(shrinking(rows), label="rows"),
        "heads": draw(shrinking(heads), label="heads"),
        "width_k": draw(shrinking(width_k, 0), label="Dk"),
        "width_v": draw(shrinking(width_v, 0), label="Dv"),
    }
    return completed(draw, fields, sizes)


MEASURES: dict[str, Callable[[Any], int]] = {
    "bytes": lambda case: case.rows * case.heads * (case.width_k + case.width_v) * dtype_bytes(case.dtype),
}
