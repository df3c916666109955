"""Pad slots: the index of an entry that is to be skipped."""

from typing import Any

BEYOND = 2**40  # larger than 32 bits hold, and than what wrong calls have for an index


def drawn_pad(case: Any, indices: str, slots: int, outside: int) -> int | None:
    """The pad of a case with `pads` and `pad_in_range`: a number outside of the pool, or its last slot.

    Where nobody is a pad one that no entry of `indices` equals: none at all, the number outside, or, where entries have 64 bits,
    one whose lower half is a slot.
    """
    if case.pads:
        return slots - 1 if case.pad_in_range else outside
    pads = (None, outside) if indices in case.int32 else (None, outside, BEYOND + case.seed // 3 % max(slots, 1))
    return pads[case.seed % len(pads)]
