"""Planted bugs: small patches of the kernels' sources, which the harness must notice.

A file of them, which the suite names (by default `mutants.toml` in its root), holds `[[mutant]]` tables:

    pair        the pair that it is about; needed where the file belongs to no single pair and the suite has several
    id          a word or two, unique for its pair; the mutant's name is <pair>/<id>
    says        one sentence: what the planted bug does
    class       the class of bugs that it stands for, such as "tail" or "stride"
    file, find, replace   the patch: `find` must occur exactly once in the file
    also        more patches of the same mutant: [{file, find, replace}, ...]
    line        the line of the catalogue of bugs that it comes from (optional)
    tier        the candidate that it is planted in; without it the suite chooses one that runs here
    units       the sources to compile for a patched header, where that is not the kernel, what it calls and the operators with it
    subtle      true: seen in less than 1% of uniformly drawn batches, or a relative error below 1%
    relation    the trial that is expected to notice it first, because the judgement of a single call cannot
    equivalent  why it cannot be noticed; such a mutant is shown and does not count
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelpair.suite import Suite


class MutantError(RuntimeError):
    """A mutant cannot be planted: its patch does not apply, or what it makes does not compile."""


@dataclass(frozen=True)
class Patch:
    """One replacement in one file, by its path in the suite's root."""

    file: str
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    pair: str
    id: str
    says: str
    group: str
    patches: tuple[Patch, ...]
    line: int | None = None
    tier: str | None = None
    units: tuple[str, ...] = ()
    subtle: bool = False
    relation: str | None = None
    equivalent: str = ""
    elsewhere: bool = False
    """It is planted in another tier than the one that it was written for; an equivalent mutant may be noticed there."""

    @property
    def name(self) -> str:
        return f"{self.pair}/{self.id}"

    def patched(self, root: Path) -> dict[str, str]:
        """File -> its text with the bug in it. Raises MutantError unless every patch applies exactly once."""
        texts: dict[str, str] = {}
        for patch in self.patches:
            text = texts[patch.file] if patch.file in texts else self._text(root / patch.file)
            count = text.count(patch.find)
            if count != 1:
                raise MutantError(f"{self.name} no longer applies: in {patch.file} its text occurs {count} times: {patch.find!r}")
            texts[patch.file] = text.replace(patch.find, patch.replace)
        return texts

    def _text(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise MutantError(f"{self.name} no longer applies: {error}") from None


def mutants(suite: "Suite") -> dict[str, Mutant]:
    """Every mutant by name, file by file. Raises MutantError for a table that is not as it should be."""
    found: dict[str, Mutant] = {}
    only = list(suite.pairs())
    for path, pair in suite.mutants().items():
        for table in _tables(path):
            mutant = _read(path, pair or (only[0] if len(only) == 1 else ""), table)
            if mutant.pair not in suite.pairs():
                raise MutantError(f"{path}: mutant {mutant.id!r} is about {mutant.pair!r}, which is no pair")
            if mutant.name in found:
                raise MutantError(f"{path}: {mutant.pair} has two mutants {mutant.id!r}")
            found[mutant.name] = mutant
    return found


def _tables(path: Path) -> list[dict[str, Any]]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MutantError(f"{path}: {error}") from None
    tables = document.get("mutant") if document else []  # a file of comments, as new-pair writes it, has none
    if not isinstance(tables, list):
        raise MutantError(f"{path}: expected [[mutant]] tables")
    return tables


def _read(path: Path, pair: str, table: Mapping[str, Any]) -> Mutant:
    rest = dict(table)
    try:
        patches = (_patch(rest), *(_patch(dict(more)) for more in rest.pop("also", ())))
        return Mutant(
            pair=rest.pop("pair", "") or pair,
            id=rest.pop("id"),
            says=rest.pop("says"),
            group=rest.pop("class"),
            patches=patches,
            units=tuple(rest.pop("units", ())),
            **rest,
        )
    except (KeyError, TypeError) as error:
        raise MutantError(f"{path}: mutant {table.get('id')!r}: {error}") from None


def _patch(table: dict[str, Any]) -> Patch:
    return Patch(table.pop("file"), table.pop("find"), table.pop("replace"))
