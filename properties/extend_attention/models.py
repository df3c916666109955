"""extend_attention: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.extend_attention.cases import FIELDS, RARE, ExtendAttentionCase, completed, keys_of
from properties.shared.models import ENCODERS, LONGEST, Budget, Heads, dtype_bytes, heads, ragged
from properties.shared.strategies import any_of, shrinking

# Requests, new tokens and cached tokens of the longest. One row more than a unit of tiles, a block of keys, a group of units.
BATCHES = ((1, 2048, 0), (1, 1030, 0), (2, 300, 300), (3, 130, 600), (2, 64, 1100), (2, 16, 4100), (1, 2, 8200), (33, 12, 40))
LARGEST = (256, 1, 16)
SLOW_BATCHES = ((1, 70, 250), (2, 33, 270), (1, 5, 700), (40, 2, 9))
FAST, SLOW = Budget(300_000, 10_000_000), Budget(300_000, 25_000_000)


@cache
def models(slow: bool) -> st.SearchStrategy[ExtendAttentionCase]:
    """Whole prompts, chunks behind long prefixes, large batches, and images seen in cross attention."""
    return _models(slow)


@st.composite
def _models(draw: st.DrawFn, slow: bool) -> ExtendAttentionCase:
    fields, rare, layer = draw(FIELDS), draw(RARE, label="rare"), draw(heads())
    batch, new, cached = draw(any_of(*(SLOW_BATCHES if slow else BATCHES)), label="batch, new, cached")
    if rare % 32 == 31 and not slow:
        batch, new, cached = LARGEST
    kind = "self" if rare % 8 < 6 else draw(any_of("cross", "behind an encoder"), label="kind")
    if kind == "cross" and not slow:
        new, cached = draw(any_of(*((24, n) if n < 5000 else (6, n) for n in ENCODERS)))
    budget, longest = SLOW if slow else FAST, rare % 100 == 58 and not slow
    if longest:
        layer, kind, batch, new, cached = Heads(2, 1, min(layer.width, 64), min(layer.width_v, 64)), "self", 1, 3, LONGEST
    elif batch == 1 and new > 1024 and rare % 16 != 4:
        new //= 4  # a whole prompt takes as long as several other cases
    batch = min(batch, 2) if kind == "cross" else batch
    count = draw(shrinking(batch), label="batch")
    extends = ragged(count, draw(shrinking(new), label="new"))
    cached = draw(shrinking(cached if longest else layer.longest(budget, cached), 0), label="cached")
    prefixes = ragged(count, cached) if cached else (0,) * count
    scores = sum(e * (p + (0 if kind == "cross" else e)) for e, p in zip(extends, prefixes))
    if not longest:
        layer = layer.within(budget, sum(extends) + sum(prefixes), scores)
    encoder = {"cross": prefixes, "behind an encoder": tuple(n % 40 for n in extends)}.get(kind)
    if kind == "cross":
        prefixes = tuple(p % 5 for p in prefixes)
    sizes = {"heads": layer.heads, "kv_heads": layer.kv_heads, "width": layer.width, "width_v": layer.width_v}
    return completed(draw, fields, extends, prefixes, kind, encoder, rare, sizes)


def _rows(case: ExtendAttentionCase) -> int:
    return max(case.extends, default=0) * case.heads // case.kv_heads


MEASURES: dict[str, Callable[[Any], int]] = {
    "keys": lambda case: max((keys_of(case, b) for b, new in enumerate(case.extends) if new), default=0),
    "rows": _rows,
    "units": lambda case: _rows(case) // 32,
    "packed": lambda case: MEASURES["keys"](case) * (case.width + case.width_v) * dtype_bytes(case.dtype),
    "group": lambda case: _rows(case) * (case.width * dtype_bytes(case.dtype) + 4 * case.width_v),
}
