"""What to say of a name that nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown pair 'stor_cache' (did you mean store_cache?); known are …`"""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown {what} {name!r}{hint}; known are {', '.join(names) or 'none'}"
