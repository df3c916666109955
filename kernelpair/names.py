"""Names and numbers in messages."""

from collections.abc import Iterable
from difflib import get_close_matches

SCREENFUL, FEW = 60, 12  # names that are listed, and of more than that those that come nearest


def count(number: int, what: str) -> str:
    """A number and its noun, in the plural but for one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def noun(cases: int) -> str:
    """Behind a number of cases in a column."""
    return "case " if cases == 1 else "cases"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown pair 'stor_cache' (did you mean store_cache?); known are …`"""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    if len(names) > SCREENFUL:
        near = get_close_matches(name, names, n=FEW, cutoff=0.0)
        return f"unknown {what} {name!r}{hint}; known are {', '.join(near)} and {len(names) - len(near):,} others"
    return f"unknown {what} {name!r}{hint}; known are {', '.join(names) or 'none'}"
