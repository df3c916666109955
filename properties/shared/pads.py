"""Pad slots: the index of an entry that is to be skipped, and which entries are."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, arange, cat

from kernelpair.call.layout import FAR, FAR_COLUMNS
from kernelpair.call.values import permutation
from properties.shared.strategies import any_of

SUBSET_BITS = 5
SUBSETS = tuple(range(1, 2**SUBSET_BITS))  # for `named`
NOBODY = -(2**20)  # no slot
BEYOND = 2**40  # larger than 32 bits hold, and than what wrong calls have for an index

MANY_SLOTS = 2**16 + 3  # more than 16 bits count
SMALL_SLOT, SMALL_TOKEN, SMALL_ROW = 54, 64, 16  # elements of one of so many


def more_slots(seed: int, layout: Mapping[str, str], elements: int) -> int:
    """How many slots a pool has that nobody needs: of one case in eight whose slots have few elements more than 16 bits count, so
    that those that are used have larger numbers (`high_first`). Slots far apart would take a page each."""
    return MANY_SLOTS if 0 < elements <= SMALL_SLOT and _near(layout) and seed % 8 == 4 else 0


def high_first(seed: int, name: str, slots: int) -> Tensor:
    """The slots of a pool in any order; of more than MANY_SLOTS those come first that 16 bits do not count: of a few that lie
    anywhere in such a pool hardly ever one would."""
    many = MANY_SLOTS if slots > MANY_SLOTS else 0
    return cat((permutation(seed, name, slots - many) + many, arange(many)))


def in_order(seed: int, slots: int, spare: int) -> Tensor:
    """The slots of a pool, those that nobody needs last; in half of the cases they stand in front of the others, so that what is
    read behind the last one lies outside of the pool."""
    return arange(slots).roll(-spare * (seed % 2))


def more_rows(seed: int, layout: Mapping[str, str], columns: int) -> int:
    """Rows of a request table that nobody has, in front of the others: of one case in eight whose rows are short more than
    16 bits count."""
    return MANY_SLOTS if columns <= SMALL_ROW and _near(layout) and seed % 8 == 6 else 0


def more_tokens(seed: int, layout: Mapping[str, str], elements: int) -> int:
    """Tokens of nobody in front of a call's requests: of a quarter of the cases whose tokens have few elements as many, so that
    the numbers of the others need more than 16 bits."""
    return MANY_SLOTS if 0 < elements <= SMALL_TOKEN and _near(layout) and seed % 4 == 2 else 0


def _near(layout: Mapping[str, str]) -> bool:
    return FAR not in layout.values() and FAR_COLUMNS not in layout.values()


def drawn_pad(case: Any, indices: str, slots: int, outside: int) -> int | None:
    """The pad of a case with `pads` and `pad_in_range`: a number outside of the pool, `outside` or the -1 of engines, or its
    last slot or its first.

    Where nobody is a pad one that no entry of `indices` equals: none at all, the number outside, or, where entries have 64 bits,
    one whose lower half is a slot.
    """
    outside = -1 if case.seed // 7 % 3 == 0 else outside
    if case.pads:
        return _pad_in_range(case, slots) if case.pad_in_range else outside
    pads = (None, outside) if indices in case.int32 else (None, outside, BEYOND + case.seed // 3 % max(slots, 1))
    return pads[case.seed % len(pads)]


def other_dtypes(case: Any, names: tuple[str, ...], pad: int | None) -> tuple[str, ...]:
    """Of index arguments that all are int64 in the case those that are int32 in its repetition, and the other way round: all of
    them, none where the pad is a number that int32 does not hold."""
    return () if case.int32 or (pad is not None and pad >= BEYOND) else names


def _pad_in_range(case: Any, slots: int) -> int:
    return 0 if case.seed % 2 else slots - 1


def free_slots(case: Any, slots: int, name: str = "slots") -> Tensor:
    """The slots of a pool that are no pad's, in any order."""
    order = high_first(case.seed, name, slots - case.pad_in_range)
    return order + 1 if case.pad_in_range and _pad_in_range(case, slots) == 0 else order


def entry_of(pad: int | None, outside: int) -> int:
    """What stands in the indices of an entry that is skipped: the pad, or `outside` where there is none."""
    return outside if pad is None else pad


def nobodys(case: Any, used: Sequence[int]) -> int:
    """What stands in the indices of an entry that nobody may interpret: no slot, or in half of the cases one that another entry
    uses, as stale entries do. It is no duplicate."""
    return used[case.seed // 6 % len(used)] if used and case.seed // 3 % 2 else NOBODY


def named(which: str, subset: int, count: int) -> tuple[int, ...]:
    """None, some or all of so many entries: some are those whose bit of the subset (or of a seed) is set, its bits repeated."""
    if which == "some":
        return tuple(n for n in range(count) if subset >> n % SUBSET_BITS & 1)
    return tuple(range(count)) if which == "all" else ()


def drawn_pads(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Which of so many requests are pads."""
    which = draw(any_of("none", "none", "some", "all"), label="pads")
    return named(which, draw(any_of(*SUBSETS), label="some") if which == "some" else 0, count)
