"""mla_decode: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.mla_decode.cases import FIELDS, MlaDecodeCase, within_workspace
from properties.shared.models import LATENT, LONGEST, ROPE, dtype_bytes, ragged
from properties.shared.strategies import any_of, between, shrinking

# Heads, and a batch's requests and keys of the longest; more than one of the automatic splits where heads are few.
BATCHES = ((128, 1, 260), (64, 1, 530), (32, 2, 300), (16, 4, 400), (16, 1, 1100), (16, 33, 20), (2, 130, 4))
SLOW_BATCHES = ((128, 1, 140), (64, 2, 140), (16, 2, 600), (32, 1, 530), (16, 40, 9))


@cache
def models(slow: bool) -> st.SearchStrategy[MlaDecodeCase]:
    """16 to 128 heads over whole latents, mostly with automatic splits."""
    return _models(slow)


@st.composite
def _models(draw: st.DrawFn, slow: bool) -> MlaDecodeCase:
    fields, rare = draw(FIELDS), draw(between(0, 99), label="rare")
    heads, batch, keys = draw(any_of(*(SLOW_BATCHES if slow else BATCHES)), label="heads, batch, keys")
    heads = draw(shrinking(heads), label="heads")
    latent, rope = draw(shrinking(LATENT)), draw(shrinking(ROPE))
    if rare == 58 and not slow:
        heads, latent, rope, batch, keys = 2, min(latent, 64), min(rope, 8), 1, LONGEST
    lens = ragged(draw(shrinking(batch), label="batch"), draw(shrinking(keys), label="keys"))
    if rare % 4:
        fields["splits"] = -1
    fields = within_workspace(fields, len(lens), heads, latent)
    return MlaDecodeCase(**fields, lens=lens, heads=heads, latent=latent, rope=rope)


MEASURES: dict[str, Callable[[Any], int]] = {
    "keys": lambda case: max(case.lens, default=0) if case.splits == -1 else 0,
    "heads": lambda case: case.heads,
    "page": lambda case: case.page,
    "requests": lambda case: len(case.lens) if case.splits == -1 else 0,
    "bytes": lambda case: sum(case.lens) * (case.latent + case.rope) * dtype_bytes(case.dtype),
}
