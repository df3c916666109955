"""fused_moe: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.fused_moe.cases import FIELDS, MoeCase, completed
from properties.shared.strategies import any_of, shrinking

# tokens, experts, topk, D, I: Qwen3-30B-A3B, Qwen3-Next, gpt-oss, DeepSeek-V3 with few of their experts, each as large as the
# truth is fast; and small experts with long prompts, odd ones: their chunks are not all alike; and one deeper than
# any of these. A shared expert takes its tokens in three parts if they are as many as in the last one.
LONG = (8300, 1, 1, 3, 2)
SHAPES = (
    (2, 3, 2, 2048, 768), (3, 2, 2, 2048, 512), (2, 1, 1, 2880, 2880), (2, 1, 1, 7168, 96), (70, 1, 1, 2100, 40),
    (1501, 3, 4, 8, 8), (1101, 2, 4, 33, 17), (40, 128, 8, 64, 48), (24, 512, 10, 20, 16), (1, 8, 8, 2048, 64),
    (20, 2, 1, 96, 2112), (9, 1, 1, 7168, 24), (9, 1, 1, 12, 16_500), LONG,
)  # fmt: skip
SLOW_SHAPES = ((1, 2, 1, 2048, 128), (70, 1, 1, 2100, 40), (1100, 2, 1, 33, 17), (12, 32, 8, 32, 32), (2, 1, 1, 96, 1056))


@cache
def models(slow: bool) -> st.SearchStrategy[MoeCase]:
    """Experts of models; of a slow candidate the small ones."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int, int, int], ...]) -> MoeCase:
    fields, shape = draw(FIELDS), draw(any_of(*table), label="sizes")
    if shape == LONG:
        fields = fields | {"form": "shared", "routed": True}
    tokens, experts, topk, D, inner = (draw(shrinking(size)) for size in shape)
    return completed(fields, tokens, experts, topk, D, inner)
