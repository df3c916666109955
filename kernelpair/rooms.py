"""Pairs found by their folders: `<package>/<name>/__init__.py` with a PAIR is the room of the pair `name`. No list is edited."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kernelpair.sources import Sources
from kernelpair.suite import Places, Suite

if TYPE_CHECKING:
    from kernelpair.contract.pair import Pair


class Rooms(Mapping[str, "Pair"]):
    """Every pair by name, in alphabetical order. A room is imported when its pair is asked for, so a broken one breaks alone."""

    def __init__(self, modules: Mapping[str, str], complete: "Callable[[Pair], Pair]") -> None:
        """`modules`: name -> dotted name of the room; `complete` fills in what the suite knows of a pair."""
        self._modules, self._complete = dict(sorted(modules.items())), complete
        self._pairs: dict[str, Pair] = {}

    def __getitem__(self, name: str) -> "Pair":
        if name not in self._pairs:
            self._pairs[name] = self._complete(import_module(self._modules[name]).PAIR)
        return self._pairs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


@dataclass
class RoomSuite(Suite):
    """A suite whose pairs are the rooms in one package of its root, each with reference and kernel: what `new-pair` writes."""

    root: Path
    package: str = "pairs"
    sources: Sources = field(default_factory=Sources)
    test: str = ""

    @property
    def places(self) -> Places:  # type: ignore[override]
        room = f"{self.package}/{{name}}"
        return Places(room, f"{room}/reference.py", f"{room}/kernel.py")

    def pairs(self) -> "Mapping[str, Pair]":
        found = sorted((self.root / self.package).glob("*/__init__.py"))
        return Rooms({path.parent.name: f"{self.package}.{path.parent.name}" for path in found}, self._with_files)

    def _with_files(self, pair: "Pair") -> "Pair":
        return replace(pair, files={"properties": f"{self.package}/{pair.name}/__init__.py", **pair.files})

    def saved(self, pair: str) -> Path:
        return self.root / self.package / pair / "corpus.jsonl"

    def mutants(self) -> Mapping[Path, str]:
        return {path: path.parent.name for path in sorted((self.root / self.package).glob("*/mutants.toml"))}
