"""Hypothesis strategies that every pair uses: those of the engine, and the paths through our kernels' code."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelpair.call.layout import EXPANDED, FAR, FAR_COLUMNS
from kernelpair.search.strategies import (
    any_of,
    around,
    between,
    choices,
    common,
    either,
    float_dtypes,
    guards,
    layouts,
    poisons,
    seeds,
    shrinking,
    subset,
    together,
)
from optimized import paths

__all__ = [
    "CROWD",
    "CROWDS",
    "alike",
    "any_of",
    "around",
    "between",
    "choices",
    "common",
    "crowded",
    "either",
    "float_dtypes",
    "guards",
    "kernel_paths",
    "layouts",
    "near",
    "one_far",
    "one_laid_out",
    "poisons",
    "seeds",
    "shrinking",
    "subset",
    "thinned",
    "together",
]


def alike(fields: dict[str, Any], name: str, entries: tuple[int, ...]) -> tuple[int, ...]:
    """The entries of a vector; of one case in 16 all are the first, which then stands in memory once (stride 0)."""
    if len(entries) < 2 or fields["seed"] % 16 != 5:
        return entries
    fields["layout"] = {**fields["layout"], name: EXPANDED}
    return entries[:1] * len(entries)


CROWD = 1030  # requests of seldom cases, each of a few tokens: more than a table of 1,024 holds
CROWDS = shrinking(CROWD)
FEW = 8  # requests at either end of a thinned crowd


def crowded(fields: dict[str, Any], every: int = 32) -> bool:
    """Whether the case of these fields, one of so many, is that of a crowd: they then lose what would take a page of memory for
    each. A reference that goes through the requests one by one takes a second for them."""
    if fields["seed"] % every != every - 4:
        return False
    fields["layout"] = near(fields)["layout"]
    return True


def thinned(fields: dict[str, Any], requests: Sequence[Any], nothing: Any) -> list[Any]:
    """The requests of a crowd. In seven crowds of eight only some of them have anything to do, the first and the last among
    these, and the others `nothing`: a reference goes through those in no time."""
    if fields["seed"] // 32 % 8 == 0:
        return list(requests)
    last = len(requests) - FEW
    return [one if b < FEW or b >= last or b % 97 == 0 else nothing for b, one in enumerate(requests)]


def near(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a case of very many rows: far apart each would take a page of memory."""
    return fields | {"layout": {name: kind for name, kind in fields["layout"].items() if kind not in (FAR, FAR_COLUMNS)}}


def one_far(fields: dict[str, Any], vectors: Sequence[str]) -> dict[str, Any]:
    """The fields; of one case in eight one of these vectors lies far apart, and nothing else. Among all layouts of many arguments
    that comes up in one of a hundred."""
    seed, near_ones = fields["seed"], near(fields)
    if seed % 8 != 3:
        return fields
    return near_ones | {"layout": near_ones["layout"] | {vectors[seed // 8 % len(vectors)]: FAR_COLUMNS}}


def one_laid_out(fields: dict[str, Any], kinds: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields; of one case in eight one of these arguments lies in one of its ways, whatever else does."""
    seed, name = fields["seed"], list(kinds)[fields["seed"] // 8 % len(kinds)]
    if seed % 8 != 3:
        return fields
    kind = kinds[name][seed // 8 // len(kinds) % len(kinds[name])]
    return fields | {"layout": fields["layout"] | {name: kind}}


def kernel_paths(*prefixes: str, but: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """For `Coverage.paths`: the paths (csrc/core/path.h) whose names begin with one of these, as far as the tier has them."""

    def of(candidate: str) -> list[str]:
        return [name for name in paths(candidate) if name.startswith(prefixes) and name not in but]

    return of
