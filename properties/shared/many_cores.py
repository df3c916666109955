"""How one request is cut for the cores of a server: what relations of kernels that decode call with."""

from collections.abc import Iterator
from typing import NamedTuple

from kernelpair.trial.modes import MANY

LEAST_KEYS = 64  # of a split


class Cut(NamedTuple):
    """A call of one request: so many kv heads, each with one query head, over so many keys, on so many threads."""

    heads: int
    keys: int
    threads: int


def cuts(seed: int) -> Iterator[Cut]:
    """In more splits than any case has; in splits and kv heads; in kv heads alone, not equally many for each thread."""
    yield Cut(1, MANY * LEAST_KEYS, MANY)
    yield Cut(2, MANY * LEAST_KEYS // 4, MANY)
    yield Cut(8, LEAST_KEYS - 1 - seed % 8, 5 + seed % 3)
