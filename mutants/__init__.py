"""Planted bugs: small patches of the kernels' sources, one file of them a pair, which the harness must notice.

`mutants/<pair>.toml` holds `[[mutant]]` tables:

    id          a word or two, unique in its file; the mutant's name is <pair>/<id>
    says        one sentence: what the planted bug does
    class       the class of bugs that it stands for, such as "tail" or "stride"
    file, find, replace   the patch: `find` must occur exactly once in the file
    also        more patches of the same mutant: [{file, find, replace}, ...]
    line        the line of the catalogue of bugs that it comes from (optional)
    tier        where the bug can live; without it the best tier that runs here, tiles apart
    units       the sources to compile, where a patched header is not only the pair's kernel's
    subtle      true: seen in less than 1% of uniformly drawn batches, or a relative error below 1%
    relation    the trial that is expected to notice it first, because the judgement of a single call cannot
    equivalent  why it cannot be noticed; such a mutant is shown and does not count
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEST = "best"  # the tier of a mutant that names none


class MutantError(RuntimeError):
    """A mutant cannot be planted: its patch does not apply, or what it makes does not compile."""


@dataclass(frozen=True)
class Patch:
    """One replacement in one file, by its path in the project."""

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
    tier: str = BEST
    units: tuple[str, ...] = ()
    subtle: bool = False
    relation: str | None = None
    equivalent: str = ""

    @property
    def name(self) -> str:
        return f"{self.pair}/{self.id}"


def mutants() -> dict[str, Mutant]:
    """Every mutant by name, pair by pair. Raises MutantError for a table that is not as it should be."""
    found: dict[str, Mutant] = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["mutant"]:
            mutant = _read(path.stem, table)
            if mutant.name in found:
                raise MutantError(f"{path.name} has two mutants {mutant.id!r}")
            found[mutant.name] = mutant
    return found


def _read(pair: str, table: dict[str, Any]) -> Mutant:
    rest = dict(table)
    try:
        patches = (_patch(rest), *(_patch(dict(more)) for more in rest.pop("also", ())))
        return Mutant(
            pair,
            id=rest.pop("id"),
            says=rest.pop("says"),
            group=rest.pop("class"),
            patches=patches,
            units=tuple(rest.pop("units", ())),
            **rest,
        )
    except (KeyError, TypeError) as error:
        raise MutantError(f"mutants/{pair}.toml, mutant {table.get('id')!r}: {error}") from None


def _patch(table: dict[str, Any]) -> Patch:
    return Patch(table.pop("file"), table.pop("find"), table.pop("replace"))


def patched(mutant: Mutant, root: Path = ROOT) -> dict[str, str]:
    """File -> its text with the bug in it. Raises MutantError unless every patch applies exactly once."""
    texts: dict[str, str] = {}
    for patch in mutant.patches:
        text = texts[patch.file] if patch.file in texts else _text(mutant, root / patch.file)
        count = text.count(patch.find)
        if count != 1:
            raise MutantError(f"{mutant.name} no longer applies: in {patch.file} its text occurs {count} times: {patch.find!r}")
        texts[patch.file] = text.replace(patch.find, patch.replace)
    return texts


def _text(mutant: Mutant, path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise MutantError(f"{mutant.name} no longer applies: {error}") from None
