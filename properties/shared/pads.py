"""Pad slots: the index of an entry that is to be skipped."""


BEYOND = 2**40  # 32 bits, and what wrong calls have as an index


def idle_pad(seed: int, slots: int, outside: int) -> int | None:
    """A pad that no entry equals: none at all, a number outside of the pool, or one whose lower 32 bits are those of a slot."""
    return (None, outside, BEYOND + seed // 3 % slots)[seed % 3]
