"""paged_attention: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.paged_attention.cases import FIELDS, KINDS, PagedAttentionCase, completed
from properties.shared.models import ENCODERS, LATENT, LATENT_HEADS, LONGEST, ROPE, Budget, Heads, dtype_bytes, heads, ragged
from properties.shared.strategies import any_of, between, shrinking

PAGES = (1, 16, 32, 64, 128, 256)
# Requests, and rows and keys of the longest.
BATCHES = ((1, 1030, 1030), (2, 300, 600), (3, 64, 1100), (2, 16, 4100), (1, 3, ENCODERS[1]), (2, 20, ENCODERS[0]),
           (2, 1, 8200), (33, 1, 150))
LARGEST = (256, 1, 48)
SLOW_BATCHES = ((1, 70, 320), (2, 33, 300), (1, 5, 700), (40, 1, 20), (2, 1, 300))
LATENT_BATCHES = ((1, 20, 300), (4, 1, 300), (33, 1, 40))
SLOW_LATENT_BATCHES = ((1, 3, 140), (2, 1, 260))
FAST, SLOW = Budget(500_000, 30_000_000), Budget(300_000, 25_000_000)


@cache
def models(slow: bool) -> st.SearchStrategy[PagedAttentionCase]:
    """Prompts, chunks behind long prefixes, batches of single rows, and heads over one latent; in every size of a page."""
    return _models(slow)


@st.composite
def _models(draw: st.DrawFn, slow: bool) -> PagedAttentionCase:
    fields, kind, rare, layer = draw(FIELDS), draw(KINDS, label="kind"), draw(between(0, 119), label="rare"), draw(heads())
    fields["page"] = draw(shrinking(draw(any_of(*PAGES))), label="page")
    table: tuple[tuple[int, int, int], ...] = SLOW_BATCHES if slow else BATCHES
    if kind == "latent":
        layer = Heads(draw(shrinking(draw(any_of(*LATENT_HEADS)))), 1, draw(shrinking(ROPE)), draw(shrinking(LATENT)))
        table = SLOW_LATENT_BATCHES if slow else LATENT_BATCHES
    batch, rows, keys = draw(any_of(*table), label="batch, rows, keys")
    if rare % 32 == 31 and not slow and kind != "latent":
        batch, rows, keys = LARGEST
    budget, longest = SLOW if slow else FAST, rare == 58 and kind != "latent" and not slow
    if longest:
        layer, batch, rows, keys = Heads(2, 1, min(layer.width, 64), min(layer.width_v, 64)), 1, 2, LONGEST
    count = draw(shrinking(batch), label="batch")
    keys = keys if longest or kind == "latent" else layer.longest(budget, keys)
    lens, several = ragged(count, draw(shrinking(keys), label="keys")), ragged(count, draw(shrinking(rows), label="rows"))
    if not longest:
        scores = sum(q * k for q, k in zip(several, lens)) * (2 if kind == "latent" else 1)
        layer = layer.within(budget, sum(lens), scores)
    sizes = {"heads": layer.heads, "kv_heads": layer.kv_heads, "width": layer.width, "width_v": layer.width_v}
    return completed(draw, fields, several, lens, kind, rare, sizes)


def _rows(case: PagedAttentionCase) -> int:
    return max(case.rows, default=0) * case.heads // case.kv_heads


def _bytes(case: PagedAttentionCase, keys: int) -> int:
    return keys * (case.width + case.width_v) * dtype_bytes(case.dtype)


MEASURES: dict[str, Callable[[Any], int]] = {
    "keys": lambda case: max((k for q, k in zip(case.rows, case.lens) if q), default=0),
    "heads": lambda case: case.heads // case.kv_heads,
    "rows": _rows,
    "units": lambda case: _rows(case) // 32,
    "bytes": lambda case: case.kv_heads * _bytes(case, sum(k for q, k in zip(case.rows, case.lens) if q == 1)),
    "packed": lambda case: _bytes(case, max((k for q, k in zip(case.rows, case.lens) if q > 1), default=0)),
    "group": lambda case: _rows(case) * (case.width * dtype_bytes(case.dtype) + 4 * case.width_v),
}
