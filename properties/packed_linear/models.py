"""packed_linear: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.packed_linear.cases import FIELDS, LinearCase, completed
from properties.shared.linear_layers import measures, model_layer

# M, N, K: each as large as it gets, or two of them; the third is cut, for the truth takes a nanosecond a product.
SHAPES = (
    (1, 152_064, 24), (3, 33_000, 96), (1, 40, 14_336), (20, 33, 14_336), (1030, 96, 100), (70, 2304, 100), (1, 2304, 900),
    (16, 5120, 80), (130, 40, 2200), (128, 1100, 64), (512, 3072, 4), (5, 4096, 160), (70, 5, 14_336),
)  # fmt: skip
SLOW_SHAPES = ((1, 33_000, 24), (1, 40, 14_336), (40, 70, 2100), (70, 2304, 40), (130, 40, 2100), (1030, 96, 40), (5, 4096, 96))


@cache
def models(slow: bool) -> st.SearchStrategy[LinearCase]:
    """A vocabulary, a wide hidden layer, a prompt of 1,030 tokens."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int], ...]) -> LinearCase:
    return completed(draw, draw(FIELDS), *model_layer(draw, table))


MEASURES = measures(32)
