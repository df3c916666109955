"""fp8_linear: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.fp8_linear.cases import FIELDS, Fp8LinearCase, completed
from properties.shared.linear_layers import measures, model_layer

# M, N, K: layers of DeepSeek-V3, of which the largest size is whole and the others are cut: a product takes the truth 1 ns.
SHAPES = (
    (1, 18_432, 130), (3, 33_000, 96), (1, 40, 18_432), (20, 33, 7168), (1030, 96, 100), (70, 2304, 100), (1, 2304, 900),
    (16, 7168, 80), (130, 40, 2200), (512, 3072, 4), (5, 4096, 160), (1, 129_280, 33), (70, 5, 18_432),
)  # fmt: skip
SLOW_SHAPES = ((1, 33_000, 24), (1, 40, 18_432), (40, 70, 2100), (70, 2304, 40), (130, 40, 2100), (1030, 96, 40), (5, 4096, 96))


@cache
def models(slow: bool) -> st.SearchStrategy[Fp8LinearCase]:
    """Projections of a model whose weights are published as codes, a prompt of 1,030 tokens."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int], ...]) -> Fp8LinearCase:
    return completed(draw(FIELDS), *model_layer(draw, table))


MEASURES = measures(32)
