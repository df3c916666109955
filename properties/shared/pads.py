"""Pad slots: the index of an entry that is to be skipped."""


from kernelpair.contract.case import Case

BEYOND = 2**40  # 32 bits, and what wrong calls have as an index


def idle_pad(case: Case, indices: str, slots: int, outside: int) -> int | None:
    """A pad that no entry of an argument equals: none at all, a number outside of the pool, or, where entries have 64 bits, one
    whose lower half is a slot."""
    pads = (None, outside) if indices in case.int32 else (None, outside, BEYOND + case.seed // 3 % slots)
    return pads[case.seed % len(pads)]
