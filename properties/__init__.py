"""Per kernel: which cases its contract allows, how far it may be from the truth, what else must hold. One room a stem.

`pairs()` finds the `PAIR` of every room here and in `scenarios/`; no list is edited by hand. `suite.py` tells the engine of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kernelpair.rooms import Rooms

if TYPE_CHECKING:
    from kernelpair.contract.pair import Pair

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(__file__).resolve().parent
JOINS = re.compile(r"^PAIR\b", re.MULTILINE)
NEEDS = re.compile(r'^NEEDS = "(\w+)"', re.MULTILINE)
NO_ROOMS = ("shared", "providers", "scenarios")


def rooms() -> Iterator[Path]:
    """The folder of every pair: its `__init__.py` has a PAIR. Where it says NEEDS, that package has to be installed."""
    for folder in (HOME, HOME / "scenarios"):
        for path in sorted(folder.glob("*")):  # a suite may have no scenarios
            module = path / "__init__.py"
            text = module.read_text() if path.name not in NO_ROOMS and module.is_file() else ""
            if JOINS.search(text) and all(find_spec(package) for package in NEEDS.findall(text)):
                yield path


def module_of(path: Path) -> str:
    """A room's dotted name."""
    return ".".join(path.relative_to(ROOT).parts)


@cache
def pairs() -> Mapping[str, "Pair"]:
    """Every pair by its name, which is that of its room."""
    found = {path.name: path for path in rooms()}
    return Rooms(
        {name: module_of(path) for name, path in found.items()},
        lambda pair: replace(pair, files=_files(found[pair.name], pair.name)),
    )


def _files(path: Path, name: str) -> dict[str, str]:
    """Role -> path relative to the project, for the files that exist."""
    wanted = {
        "reference": f"reference/{name}.py",
        "operator": f"csrc/ops/{name}.cpp",
        "kernel": f"csrc/kernels/{name}.cpp",
        "wrapper": f"optimized/{name}.py",
        "contract": f"docs/contracts/{name}.md",
    }
    here = {role: file for role, file in wanted.items() if (ROOT / file).exists()}
    return {"properties": str((path / "__init__.py").relative_to(ROOT)), **here}


def saved_cases(name: str) -> Path:
    """Where the saved cases of a pair are, one a line; they are tried first in every run."""
    return next(path for path in rooms() if path.name == name) / "corpus.jsonl"


def saved_lines(name: str) -> tuple[str, ...]:
    """The saved cases of a pair."""
    path = saved_cases(name)
    return tuple(line for line in path.read_text().splitlines() if line.strip()) if path.exists() else ()
