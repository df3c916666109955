"""int8_linear: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.int8_linear.cases import FIELDS, Int8Case, completed
from properties.shared.linear_layers import measures, model_sizes

# M, N, K: each as large as it gets, or two of them; the third is cut, for the truth takes a nanosecond a product. The last one
# has more panels a thread than sums wait at a time, and deep ones.
SHAPES = (
    (1, 28_672, 96), (3, 33_000, 66), (1, 40, 14_336), (20, 33, 14_336), (1030, 96, 100), (70, 2304, 100), (1, 6144, 900),
    (16, 5120, 80), (130, 40, 4200), (12, 200, 4300), (128, 1100, 64), (512, 3072, 4), (1, 128_256, 24), (7, 4224, 4160),
)  # fmt: skip
SLOW_SHAPES = ((1, 33_000, 24), (1, 40, 14_336), (40, 70, 4200), (70, 2304, 66), (130, 40, 4200), (1030, 96, 40))


@cache
def models(slow: bool) -> st.SearchStrategy[Int8Case]:
    """Layers of an 8B model, a prompt of 1,030 tokens."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int], ...]) -> Int8Case:
    fields, (M, N, K) = draw(FIELDS), model_sizes(draw, table)
    return completed(fields, (M,), N, K)


MEASURES = measures(64) | {"quads": lambda case: case.K // 4, "bytes": lambda case: case.N * case.K}
