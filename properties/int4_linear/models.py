"""int4_linear: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.int4_linear.cases import FIELDS, Int4Case, completed
from properties.shared.linear_layers import measures, model_layer

# M, N, K: layers of Llama-3-8B, of which the largest size is whole and the others are cut: a product takes the truth 1 ns;
# and the last one, deeper than 16 bits count.
SHAPES = (
    (1, 28_672, 130), (3, 33_000, 96), (1, 40, 14_336), (20, 33, 4096), (1030, 96, 100), (70, 2304, 100), (1, 2304, 900),
    (16, 6144, 80), (130, 40, 2200), (512, 3072, 4), (5, 4096, 160), (1, 128_256, 33), (70, 5, 14_336),
    (2, 3, 70_000),
)  # fmt: skip
SLOW_SHAPES = ((1, 33_000, 24), (1, 40, 14_336), (40, 70, 2100), (70, 2304, 40), (130, 40, 2100), (1030, 96, 40), (5, 4096, 96))


@cache
def models(slow: bool) -> st.SearchStrategy[Int4Case]:
    """Projections of a model whose weights are published in four bits, a prompt of 1,030 tokens."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int], ...]) -> Int4Case:
    return completed(draw(FIELDS), *model_layer(draw, table))


MEASURES = measures(32) | {"units": lambda case: case.K // 8}
