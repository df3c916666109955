"""causal_conv1d: cases with the sizes of users' models."""

from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kernelpair.call.layout import TURNED
from properties.causal_conv1d.cases import FIELDS, ConvCase, with_lengths
from properties.shared.models import ragged
from properties.shared.strategies import any_of, between, shrinking

# Form, channels, and a batch's requests and tokens of the longest: more than a chunk of tokens, of a row buffer, of channels, and
# more tokens and more channels than 16 bits count.
SHAPES = (
    ("varlen", 8192, 3, 17), ("update", 8192, 16, 1), ("update", 10240, 5, 1), ("batched", 12288, 2, 6), ("update", 256, 256, 1),
    ("varlen", 128, 2, 1100), ("batched", 96, 2, 1030), ("varlen", 2048, 33, 12), ("varlen", 1056, 1, 130),
    ("varlen", 64, 1, 4200), ("varlen", 32, 1, 4100), ("varlen", 2, 1, 66_000), ("update", 70_000, 2, 1),
)  # fmt: skip
LONG = 4096  # tokens; most sequences of more have dense channels, as a layer's projection leaves them


@cache
def models(slow: bool) -> st.SearchStrategy[ConvCase]:
    """Thousands of channels, long sequences, and large batches: the kernel has no tiles, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> ConvCase:
    fields = draw(FIELDS)
    form, dim, batch, length = draw(any_of(*SHAPES), label="form, dim, batch, length")
    count, longest = draw(shrinking(batch), label="batch"), draw(shrinking(length), label="length")
    lengths = ragged(count, longest) if form == "varlen" else (longest,) * count
    if length > LONG and draw(between(0, 3)):
        fields["layout"] = fields["layout"] | {"x": TURNED[0]}
    return with_lengths(draw, fields, form, draw(shrinking(dim), label="dim"), draw(any_of(4, 3, 2)), lengths)


MEASURES: dict[str, Callable[[Any], int]] = {
    "channels": lambda case: case.dim,
    "tokens": lambda case: max(case.lengths, default=0) if case.form != "pack" else 0,
    "history": lambda case: case.width,
    "elements": lambda case: case.dim * sum(case.lengths),
}
