"""decode_attention: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.decode_attention.cases import FIELDS, DecodeAttentionCase, completed, keys_of
from properties.shared.models import ENCODERS, LATENT, LATENT_HEADS, LONGEST, ROPE, Budget, Heads, dtype_bytes, heads, ragged
from properties.shared.strategies import any_of, between, shrinking

BATCHES = ((300, 20), (270, 3), (64, 100), (33, 200), (8, 1100), (2, 2100), (1, 8200))  # requests, and keys of the longest
SLOW_BATCHES = ((1, 300), (3, 140), (33, 20))
LATENT_BATCHES = ((40, 40), (4, 300), (1, 1100))
SLOW_LATENT_BATCHES = ((1, 140), (2, 129))
FAST, SLOW = Budget(300_000, 6_000_000), Budget(600_000, 8_000_000)
SLOW_LATENT = Budget(600_000, 20_000_000)
FULL = LATENT + ROPE


@cache
def models(slow: bool) -> st.SearchStrategy[DecodeAttentionCase]:
    """Long requests and large batches, of self and of cross attention, and heads over one latent."""
    return _models(slow)


@st.composite
def _models(draw: st.DrawFn, slow: bool) -> DecodeAttentionCase:
    fields, rare = draw(FIELDS), draw(between(0, 99), label="rare")
    shared = rare % 4 == 1
    kind = "self" if shared or rare % 4 < 3 else draw(any_of("cross", "behind an encoder"), label="kind")
    if shared:
        layer = Heads(draw(shrinking(draw(any_of(*LATENT_HEADS)))), 1, draw(shrinking(FULL)), draw(shrinking(LATENT)))
        layer = Heads(layer.heads, 1, max(layer.width, layer.width_v), layer.width_v)
        batch, keys = draw(any_of(*(SLOW_LATENT_BATCHES if slow else LATENT_BATCHES)), label="batch, keys")
    else:
        layer, (batch, keys) = draw(heads()), draw(any_of(*(SLOW_BATCHES if slow else BATCHES)), label="batch, keys")
    longest = rare == 58 and not slow
    if longest:
        layer, batch, keys = Heads(4, 1, min(layer.width, 64), min(layer.width_v, 64)), 1, LONGEST
    elif kind == "cross" and not slow:
        batch, keys = 2, draw(any_of(*ENCODERS))
    budget = (SLOW_LATENT if shared else SLOW) if slow else FAST
    keys = keys if longest else layer.longest(budget, keys)
    lens = ragged(draw(shrinking(batch), label="batch"), draw(shrinking(keys), label="keys"))
    encoder = {"cross": lens, "behind an encoder": tuple(n % 7 for n in lens)}.get(kind)
    layer = layer if longest else layer.within(budget, sum(lens), sum(lens))
    fields["splits"] = min(fields["splits"], 8 if len(lens) > 32 else 16)
    sizes = {"heads": layer.heads, "kv_heads": layer.kv_heads, "width": layer.width, "width_v": layer.width_v}
    return completed(draw, fields, lens, kind, encoder, shared, sizes)


def _key_bytes(case: DecodeAttentionCase) -> int:
    return case.kv_heads * (case.width + (0 if case.shared else case.width_v)) * dtype_bytes(case.dtype)


MEASURES: dict[str, Callable[[Any], int]] = {
    "keys": lambda case: max(keys_of(case), default=0),
    "heads": lambda case: case.heads // case.kv_heads,
    "bytes": lambda case: sum(keys_of(case)) * _key_bytes(case),
}
