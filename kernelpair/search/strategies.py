"""Hypothesis strategies for cases. They describe what is valid; they shrink to the plainest and smallest."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

from hypothesis import strategies as st

from kernelpair.call.layout import FUSED

SCATTER = 2_654_435_761  # a prime, so that multiplying by it loses no code
SHRUNK = 2**18  # sizes below are reached by shrinking; all codes have 24 bits, of which Hypothesis draws every one as often
MOST_LAYOUTS = 3  # arguments of one case that are not dense; more find nothing new and make failures harder to read

seeds = st.integers(0, 2**31 - 1)
poisons = st.sampled_from(["nan", "outlier"])
guards = st.sampled_from(["end", "start"])
float_dtypes = st.sampled_from(["float32", "bfloat16", "float16"])
either = st.booleans()


@lru_cache(maxsize=None, typed=True)
def any_of(*options: Any) -> st.SearchStrategy[Any]:
    """One of the options; a strategy that is made anew for each case costs ten times its draw."""
    return st.sampled_from(options)


@cache
def between(low: int, high: int) -> st.SearchStrategy[int]:
    """Both ends included."""
    return st.integers(low, high)


@cache
def shrinking(size: int, low: int = 1) -> st.SearchStrategy[int]:
    """The size itself, or for one code in 64 a number between `low` and the size, so that a failure can shrink to any smaller
    size."""
    return st.integers(0, 64 * SHRUNK - 1).map(lambda code: size if code >= SHRUNK else min(low + code, size))


def together(strategies: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """What `st.fixed_dictionaries` draws, at half of its cost."""
    return st.tuples(*strategies.values()).map(lambda drawn: dict(zip(strategies, drawn)))


def around(*centres: int, low: int = 0) -> tuple[int, ...]:
    """Each centre, one less and one more (the contracts' `n~`), in ascending order, from `low` up."""
    return tuple(sorted({size + step for size in centres for step in (-1, 0, 1) if size + step >= low}))


def layouts(allowed: Mapping[str, Sequence[str]], fused: Sequence[tuple[str, str]] = ()) -> st.SearchStrategy[dict[str, str]]:
    """Argument -> layout for a few arguments; the others are dense. One draw: 0 is all dense."""
    choices = [(name, layout) for name, several in allowed.items() for layout in several]
    choices += [(first, FUSED) for first, _ in fused]
    bits = (2 * len(choices)).bit_length()  # of a digit, the even ones of which mean no layout: shrinking can drop whole digits
    base = 2**bits

    def decode(code: int) -> dict[str, str]:
        digits = [code >> place * bits & base - 1 for place in range(MOST_LAYOUTS)]
        return dict(choices[digit // 2 % len(choices)] for digit in digits if digit % 2)

    return st.integers(0, base**MOST_LAYOUTS - 1).map(decode)


def subset(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    """Some of the names, in their order: one draw, whatever their number."""
    return st.integers(0, 2 ** len(names) - 1).map(lambda bits: tuple(n for i, n in enumerate(names) if bits >> i & 1))


def choices(options: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """One option for each name, all in one draw; 0 is the first option everywhere."""
    total = prod(map(len, options.values()))

    def decode(code: int) -> dict[str, Any]:
        code = code * SCATTER % total  # Hypothesis prefers small numbers, which would leave the last names at their first option
        chosen = {}
        for name, several in options.items():
            code, digit = divmod(code, len(several))
            chosen[name] = several[digit]
        return chosen

    return st.integers(0, total - 1).map(decode)


def common(
    layout: Mapping[str, Sequence[str]], indices: Sequence[str], fused: Sequence[tuple[str, str]] = ()
) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the fields that every case has but its dtype, for `st.builds(MyCase, **common(...), ...)`."""
    return {
        "seed": seeds,
        "layout": layouts(layout, fused),
        "int32": subset(indices),
        "poison": poisons,
        "guard": guards,
    }
