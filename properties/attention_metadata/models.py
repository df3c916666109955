"""attention_metadata: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from properties.attention_metadata.cases import (
    EXTEND_MODES,
    FIELDS,
    STATIC_MODES,
    MetadataCase,
    MetadataRequest,
    MetadataStep,
)
from properties.shared.models import ENCODERS, ragged
from properties.shared.strategies import any_of, either, shrinking

# Page, chunk in pages, and a batch's requests and tokens of the longest.
SHAPES = ((64, 128, 8, 9000), (16, 0, 33, 4100), (1, 0, 4, 8200), (256, 0, 3, 9000), (128, 64, 2, 16_500), (16, 0, 256, 300))
NEW = (1, 130, 2048)  # tokens of a request that extends


@cache
def models(slow: bool) -> st.SearchStrategy[MetadataCase]:
    """Hundreds of requests, thousands of tokens, pages of up to 256: integers, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> MetadataCase:
    fields, static = draw(FIELDS), draw(either, label="static")
    shape = draw(any_of(*SHAPES), label="page, chunk, batch, total")
    page, chunk, batch, total = (draw(shrinking(size, low)) for size, low in zip(shape, (1, 0, 1, 1)))
    modes = STATIC_MODES if static else (*STATIC_MODES, *EXTEND_MODES)
    mode, new = draw(any_of(*modes), label="mode"), draw(shrinking(draw(any_of(*NEW))))
    image = draw(shrinking(draw(any_of(0, *ENCODERS)), 0), label="encoder") if batch < 64 else 0
    requests = tuple(
        MetadataRequest(total=n, new=min(new, n), encoder=image * (b % 3 == 0), row=b)
        for b, n in enumerate(ragged(batch, total))
    )
    step = MetadataStep(mode=mode, requests=requests, encoder=image > 0)
    given = fields | {"page_size": page, "chunk_pages": chunk, "rows": batch}
    return MetadataCase(**given, static=static, batches=(step,) * (2 if static else 1))


MEASURES: dict[str, Callable[[Any], int]] = {
    "entries": lambda case: max(len(b.requests) * max((r.total for r in b.requests), default=0) for b in case.batches)
    // case.page_size,
}
