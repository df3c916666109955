"""gdn_attention_core: cases with the sizes of users' models."""

from functools import cache

from hypothesis import strategies as st

from properties.gdn_attention_core.cases import BATCHES, FIELDS, GdnCase, completed
from properties.shared.models import ragged
from properties.shared.strategies import any_of, shrinking

WIDTH = 128  # K and V
# Key heads, value heads of each, decodes, prefills and tokens of the longest. 16 and 32 heads have 8,192 channels.
SHAPES = ((16, 2, 1, 1, 3), (1, 2, 3, 1, 200), (2, 2, 0, 2, 66), (1, 1, 70, 2, 20), (4, 2, 8, 0, 0), (1, 3, 1, 1, 130))
SLOW_SHAPES = ((16, 2, 1, 1, 3), (1, 2, 1, 1, 130), (1, 1, 20, 1, 66))


@cache
def models(slow: bool) -> st.SearchStrategy[GdnCase]:
    """Layers of 128 x 128 states: many heads, several chunks, many decodes."""
    return _models(SLOW_SHAPES if slow else SHAPES)


@st.composite
def _models(draw: st.DrawFn, table: tuple[tuple[int, ...], ...]) -> GdnCase:
    drawn = draw(BATCHES, label="batch")
    for name in ("prefills", "length", "other"):
        drawn.pop(name)
    key_heads, group, decodes, prefills, tokens = draw(any_of(*table), label="heads, decodes, prefills, tokens")
    sizes = {
        "key_heads": draw(shrinking(key_heads), label="key_heads"),
        "group": draw(shrinking(group), label="group"),
        "decodes": draw(shrinking(decodes, 0), label="decodes"),
        "K": draw(shrinking(WIDTH), label="K"),
        "V": draw(shrinking(WIDTH), label="V"),
    }
    lengths = ragged(draw(shrinking(prefills, 0), label="prefills"), draw(shrinking(tokens), label="tokens"))
    return completed(drawn | sizes, lengths, draw(FIELDS))
