"""flash_attn_varlen: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.flash_attn_varlen.cases import FIELDS, VarlenCase, completed
from properties.shared.models import ENCODERS, Budget, dtype_bytes, heads, ragged
from properties.shared.strategies import any_of, shrinking

# Requests, and rows and keys of the longest: prompts, images that attend to themselves or are attended to, chunks.
BATCHES = ((1, 1030, 1030), (2, 300, 600), (3, 64, 1100), (2, 600, 300), (1, 3, ENCODERS[1]), (2, 20, ENCODERS[0]), (256, 1, 48))
SLOW_BATCHES = ((1, 70, 320), (2, 33, 300), (1, 5, 700), (40, 1, 20))
FAST, SLOW = Budget(500_000, 30_000_000), Budget(300_000, 25_000_000)


@cache
def models(slow: bool) -> st.SearchStrategy[VarlenCase]:
    """Layers of models over prompts and images."""
    return _models(slow)


@st.composite
def _models(draw: st.DrawFn, slow: bool) -> VarlenCase:
    fields, layer, budget = draw(FIELDS), draw(heads()), SLOW if slow else FAST
    batch, rows, keys = draw(any_of(*(SLOW_BATCHES if slow else BATCHES)), label="batch, rows, keys")
    count = draw(shrinking(batch), label="batch")
    lens = ragged(count, draw(shrinking(layer.longest(budget, keys)), label="keys"))
    several = ragged(count, draw(shrinking(rows), label="rows"))
    layer = layer.within(budget, sum(lens), sum(q * k for q, k in zip(several, lens)))
    sizes = {"heads": layer.heads, "kv_heads": layer.kv_heads, "width": layer.width, "width_v": layer.width_v}
    return completed(draw, fields, several, lens, sizes)


def _rows(case: VarlenCase) -> int:
    return max(case.rows, default=0) * case.heads // case.kv_heads


MEASURES: dict[str, Callable[[Any], int]] = {
    "keys": lambda case: max((k for q, k in zip(case.rows, case.lens) if q), default=0),
    "rows": _rows,
    "units": lambda case: _rows(case) // 32,
    "packed": lambda case: max(case.lens, default=0) * (case.width + case.width_v) * dtype_bytes(case.dtype),
    "group": lambda case: _rows(case) * (case.width * dtype_bytes(case.dtype) + 4 * case.width_v),
}
