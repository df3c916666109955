"""local_attention_batches: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.local_attention_batches.cases import FIELDS, MOST_ENTRIES, MOST_SPARE, LocalCase
from properties.shared.models import ragged
from properties.shared.strategies import any_of, shrinking

# Page, pages of a chunk, and a batch's requests, new tokens and tokens of the longest.
SHAPES = (
    (16, 512, 3, 8200, 20_000), (64, 128, 8, 100, 16_500), (1, 8192, 12, 100, 20_000), (128, 64, 256, 1, 9000),
    (256, 4, 33, 2048, 8200), (16, 512, 1, 5, 131_072),
)  # fmt: skip


@cache
def models(slow: bool) -> st.SearchStrategy[LocalCase]:
    """Chunks of 8,192 tokens, pages of up to 256: integers, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> LocalCase:
    fields, shape = draw(FIELDS), draw(any_of(*SHAPES), label="page, chunk, batch, new, total")
    page, chunk, batch, new, total = (draw(shrinking(size)) for size in shape)
    total = min(total, page * (MOST_ENTRIES // batch - MOST_SPARE))  # small pages of many long requests would be a huge table
    requests = tuple((min(q, k), k) for q, k in zip(ragged(batch, new), ragged(batch, total)))
    return LocalCase(**fields | {"page_size": page, "chunk_pages": chunk}, requests=requests)


MEASURES: dict[str, Callable[[Any], int]] = {
    "entries": lambda case: sum(-(-min(new + case.chunk, total) // case.page_size) for new, total in case.requests),
}
