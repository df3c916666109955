"""Sizes that users' models have, for the strategies of `Cases.models`; each shrinks to any smaller number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from properties.shared.strategies import any_of, shrinking

GROUPS = ((32, 8), (64, 8), (28, 4), (71, 1), (128, 1), (16, 1), (40, 40))  # query heads over kv heads
WIDTHS = (64, 80, 96, 112, 128, (192, 128), 256, 512, (576, 512))  # of keys and values; of both where one number stands
LATENT_HEADS = (16, 32, 64, 128)  # over one latent
LATENT, ROPE = 512, 64
ENCODERS = (1601, 6404)  # tokens of one image of a vision model, and of four
LONGEST = 131_072  # keys of a rare case


@dataclass(frozen=True)
class Budget:
    """How much of a call a reference gets through in time."""

    elements: int
    """Of all keys and values."""
    products: int
    """Of scores and values."""


@dataclass(frozen=True)
class Heads:
    """Heads and widths of an attention layer."""

    heads: int
    kv_heads: int
    width: int
    width_v: int

    def longest(self, budget: Budget, keys: int) -> int:
        """Keys of one request, of at most `keys`: a kv head of it may take four times the budget."""
        return min(keys, max(1, 4 * budget.elements // (self.width + self.width_v)))

    def within(self, budget: Budget, keys: int, rows: int) -> "Heads":
        """As many kv heads, of as large a group, as `keys` keys in all and `rows` products of a head and a key leave room for."""
        kv_heads, group, both = self.kv_heads, self.heads // self.kv_heads, self.width + self.width_v
        while kv_heads > 1 and (
            keys * kv_heads * both > budget.elements or rows * kv_heads * group * both > budget.products
        ):
            kv_heads = (kv_heads + 1) // 2
        while group > 1 and rows * kv_heads * group * both > budget.products:
            group = (group + 1) // 2
        return Heads(kv_heads * group, kv_heads, self.width, self.width_v)


@st.composite
def heads(draw: st.DrawFn, groups: Sequence[tuple[int, int]] = GROUPS, widths: Sequence[int | tuple[int, int]] = WIDTHS) -> Heads:
    """A layer of some model, or a smaller one."""
    (many, kv_heads), width = draw(any_of(*groups), label="heads"), draw(any_of(*widths), label="widths")
    both = width if isinstance(width, tuple) else (width, width)
    kv_heads, group = draw(shrinking(kv_heads)), draw(shrinking(many // kv_heads))
    return Heads(kv_heads * group, kv_heads, draw(shrinking(both[0])), draw(shrinking(both[1])))


def dtype_bytes(name: str) -> int:
    """Of one element."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype.itemsize


def ragged(count: int, longest: int) -> tuple[int, ...]:
    """Lengths of a batch: the longest first, then halves, quarters and eighths of it, and so on in turn."""
    return tuple(max(1, (longest >> b % 4) - b % 3) for b in range(count))
