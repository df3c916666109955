"""chunk_gated_delta_rule: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.chunk_gated_delta_rule.cases import FUSED, INDICES, LAYOUTS, NUMBERS, STATES, ChunkCase, completed
from properties.shared.models import ragged
from properties.shared.strategies import any_of, choices, common, shrinking, together

WIDTH = 128  # K and V
# Key heads, value heads of each, and a batch's sequences and tokens of the longest.
SHAPES = ((1, 2, 1, 200), (2, 1, 2, 129), (4, 2, 1, 66), (1, 1, 1, 270), (1, 1, 5, 65), (16, 2, 1, 5), (22, 3, 1, 3),
          (1, 1, 20, 20))
SLOW_SHAPES = ((1, 1, 1, 193), (1, 2, 1, 140), (2, 2, 1, 65), (2, 1, 2, 130), (16, 2, 1, 5))
FIELDS = st.tuples(choices(STATES), choices(NUMBERS), together(common(LAYOUTS, INDICES, FUSED)))


@cache
def models(slow: bool) -> st.SearchStrategy[ChunkCase]:
    """States of 128 x 128 over several chunks, and over many heads."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, int, int, int], ...]) -> ChunkCase:
    states, numbers, fields = draw(FIELDS, label="states, numbers, layouts")
    key_heads, group, batch, tokens = draw(any_of(*table), label="heads, batch, tokens")
    shapes: dict[str, Any] = {
        "lengths": ragged(draw(shrinking(batch), label="batch"), draw(shrinking(tokens), label="tokens")),
        "key_heads": draw(shrinking(key_heads), label="key_heads"),
        "group": draw(shrinking(group), label="group"),
        "K": draw(shrinking(WIDTH), label="K"),
        "V": draw(shrinking(WIDTH), label="V"),
    }
    return completed(shapes, states, numbers, fields)


MEASURES: dict[str, Callable[[Any], int]] = {
    "tokens": lambda case: max(case.lengths, default=0),
    "columns": lambda case: case.V,
    "blocks of a chunk": lambda case: max(case.lengths, default=0) // 16,
    "vectors": lambda case: case.V // 16,
}
