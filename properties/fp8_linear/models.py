"""fp8_linear: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

from hypothesis import strategies as st

from properties.fp8_linear.cases import FIELDS, Fp8LinearCase
from properties.shared.strategies import any_of, shrinking

# M, N, K: layers of DeepSeek-V3, of which the largest size is whole and the others are cut: a product takes the truth 1 ns.
SHAPES = (
    (1, 18_432, 130), (3, 33_000, 96), (1, 40, 18_432), (20, 33, 7168), (1030, 96, 100), (70, 2304, 100), (1, 2304, 900),
    (16, 7168, 80), (130, 40, 2200), (512, 3072, 4), (5, 4096, 160),
)  # fmt: skip
SLOW_SHAPES = ((1, 33_000, 24), (1, 40, 18_432), (40, 70, 2100), (70, 2304, 40), (130, 40, 2100), (1030, 96, 40), (5, 4096, 96))


@cache
def models(slow: bool) -> st.SearchStrategy[Fp8LinearCase]:
    """Projections of a model whose weights are published as codes, a prompt of 1,030 tokens."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int], ...]) -> Fp8LinearCase:
    fields, sizes = draw(FIELDS), draw(any_of(*table), label="M, N, K")
    M, N, K = (draw(shrinking(size), label=name) for name, size in zip("MNK", sizes))
    return Fp8LinearCase(**fields, outer=draw(any_of((M,), (1, M)), label="outer"), N=N, K=K)


MEASURES: dict[str, Callable[[Any], int]] = {
    "rows": lambda case: prod(case.outer),
    "columns": lambda case: case.N,
    "panels": lambda case: case.N // 32,
    "width": lambda case: case.K,
    "blocks": lambda case: case.K // 32,
    "steps": lambda case: case.K // 32,
    "elements": lambda case: case.N * case.K,
    "ahead": lambda case: case.N * case.K,
}
