"""A suite: the pairs of one repository and what the engine must know of it. The engine names none; this module finds one.

A suite is an object with four things; everything else has a default in the class `Suite`, which it may inherit:

    root              the folder that `premerge` compares and that paths are relative to
    pairs()           name -> Pair
    tiers()           instruction sets that candidates are compiled for; empty for a suite without tiers
    candidates(pair)  what is put on trial for a pair; their names are unique within it

It is found, in this order:

    1. by `--suite module[:attribute]`, or the environment variable KERNELPAIR_SUITE;
    2. in the current folder, or the nearest one above it, that has a `pyproject.toml` with
       `[tool.kernelpair] suite = "module[:attribute]"`, or a file `kernelpair_suite.py`;
    3. among what is installed, by the entry point group `kernelpair.suites`.

The attribute is `SUITE` where none is named.
"""

import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kernelpair.contract.candidate import Candidate, moved
from kernelpair.contract.mistakes import entry_of, told
from kernelpair.contract.other_cpu import OtherCpu
from kernelpair.sources import Sources
from kernelpair.timing.machine import Machine

if TYPE_CHECKING:
    from kernelpair.contract.pair import Pair
    from kernelpair.contract.subject import Subject

GROUP = "kernelpair.suites"
VARIABLE = "KERNELPAIR_SUITE"
FILE = "kernelpair_suite.py"
ATTRIBUTE = "SUITE"
REFERENCE = "reference"  # a candidate of every pair: its reference, in the dtypes of the arguments
REQUIRED = ("root", "pairs", "tiers", "candidates")


class SuiteError(ValueError):
    """No suite was found, or what was found is no suite; the message says what to do."""


class Tier(Protocol):
    """One instruction set. `reason` says why it cannot run here, where it cannot."""

    @property
    def name(self) -> str: ...

    @property
    def runnable(self) -> bool: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Places:
    """Where `kernelpair new-pair` writes: paths relative to the suite's root, with {name} for the pair's name."""

    room: str
    reference: str
    kernel: str


def run_as(tier: Tier) -> str:
    """How a tier that cannot run here is put on trial all the same, in a word such as "trapped"; empty where it is not. A tier
    says it with an attribute of this name, which it need not have."""
    return "" if tier.runnable else str(getattr(tier, "run_as", ""))


def obstacle(tier: Tier) -> str:
    """Why a tier cannot be put on trial here; empty where it can."""
    return "" if tier.runnable or run_as(tier) else tier.reason


class Suite:
    """What the engine asks of a suite, with a default for everything but `root` and `pairs`."""

    root: Path
    sources: Sources = Sources()
    """Which files a pair depends on, how kernels are built, how a bug is planted."""
    machine: Machine = Machine()
    """What the timing of kernels needs to know."""
    preload: Sequence[str] = ()
    """Modules that are imported once for all workers, so that a new worker is quick. They must not load a kernel's library."""
    on_trial: Mapping[str, str] = MappingProxyType({})
    """Environment variables of a process in which kernels are tried, set before a pair is imported; candidates have their
    own."""
    executed: str = ""
    """Place of a function that counts instructions by path (`Candidate.executed`), for providers that claim one."""
    cpus: Sequence[OtherCpu] = ()
    """Other CPUs than this machine's that `check --cpu` can show to a provider's kernels."""
    test: str = ""
    """The pytest id of a trial, such as "tests/test_pairs.py::test_pair[{pair}-{candidate}]"; reports print it."""
    places: Places | None = None
    """Where a new pair is written; None where the suite does not find pairs by their folders."""
    script: str = ""
    """Lines that load the kernels' library, for `replay --script`; `{candidate}` in them becomes the candidate's name."""

    def pairs(self) -> "Mapping[str, Pair]":
        """Every pair by name. A mapping may import a pair when it is asked for."""
        raise NotImplementedError

    def pair_names(self) -> Sequence[str]:
        """The names of all pairs, if they are known before torch is loaded; else empty."""
        return ()

    def tiers(self) -> Sequence[Tier]:
        """Instruction sets, from what any CPU has to what few have."""
        return ()

    def tier_names(self) -> Sequence[str]:
        """What `--tier` may name, if that is known before torch is loaded; else empty."""
        return ()

    def candidates(self, pair: "Pair") -> Sequence[Candidate]:
        """What is put on trial, the plainest first. One that is named as a tier runs where that tier does."""
        return [Candidate("optimized", entry_of(pair, "optimized"))]

    def files(self, pair: "Pair") -> Mapping[str, str]:
        """Role -> file of a pair, relative to the root: what `list` shows and `premerge` follows. `properties` is one of
        them."""
        objects = {"properties": pair.cases.type, "reference": pair.reference, "optimized": pair.optimized}
        files = {role: _file_of(self.root, each) for role, each in objects.items()}
        return {role: file for role, file in files.items() if file} | dict(pair.files)

    def reference(self, pair: "Pair") -> Candidate:
        """The pair's reference as a candidate, put on trial like a kernel."""
        return Candidate(REFERENCE, entry_of(pair, "reference"))

    def planted_in(self, pair: "Pair") -> str:
        """The candidate in which a mutant that names none is planted."""
        return self.candidates(pair)[0].name

    def facts(self) -> Mapping[str, Any]:
        """What `doctor` says beside machine and tiers: name -> text, or a mapping of texts."""
        return {}

    def saved(self, pair: str) -> Path:
        """The file of a pair's saved cases, one a line, which every run tries first."""
        return self.root / "corpus" / f"{pair}.jsonl"

    def mutants(self) -> Mapping[Path, str]:
        """Files of planted bugs -> the pair that they are about, empty where each bug names its own."""
        path = self.root / "mutants.toml"
        return {path: ""} if path.is_file() else {}

    def findings(self) -> Path:
        """The folder with pages of findings about other people's kernels."""
        return self.root / "docs" / "findings"


def _file_of(root: Path, thing: Any) -> str:
    """Where a class or function stands: relative to the root, or wherever it is; empty where Python cannot tell."""
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:  # compiled, or an object that is called
        file = None
    path = Path(file or "")
    return str(path.relative_to(root.resolve())) if path.is_relative_to(root.resolve()) else file or ""


@dataclass
class PlainSuite(Suite):
    """A suite from its parts, for a repository that has a few pairs.

    >>> from pathlib import Path
    >>> PlainSuite(Path("."), []).pairs()
    {}
    """

    root: Path
    all: "Collection[Pair]"
    named: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    """Pair -> its candidates; without them the one is `Pair.optimized`."""
    sources: Sources = field(default_factory=Sources)
    preload: Sequence[str] = ()
    test: str = ""

    def pairs(self) -> "Mapping[str, Pair]":
        return {pair.name: pair for pair in self.all}

    def candidates(self, pair: "Pair") -> Sequence[Candidate]:
        return self.named.get(pair.name) or super().candidates(pair)


class _Completed(Suite):
    """An object with the four required things, and the defaults for what else it does not have."""

    def __init__(self, found: object) -> None:
        self._found = found

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, "__dict__").get("_found")
        return getattr(found, name) if hasattr(found, name) else object.__getattribute__(self, name)


@dataclass(frozen=True)
class Place:
    """Where a suite is: enough to load it again in any process."""

    module: str
    attribute: str = ATTRIBUTE
    folder: str = ""
    """Goes to the front of sys.path."""

    def load(self) -> Suite:
        """The suite, once a process. Raises SuiteError."""
        return _load(self)


@cache
def _load(place: Place) -> Suite:
    folder = moved(place.folder)
    if folder and (folder not in sys.path or sys.path.index(folder)):
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(place.module)
    except (Exception, SystemExit) as error:  # it is somebody else's module: whatever it raises is theirs to see
        says = told(error)
        if isinstance(error, ModuleNotFoundError) and error.name and f"{place.module}.".startswith(f"{error.name}."):
            says = f"there is no module {error.name}{f' in {folder}' if folder else ''}"
        raise SuiteError(f"the suite {place.module} cannot be imported: {says}") from error
    found = getattr(module, place.attribute, None)
    if found is None:
        raise SuiteError(f"{place.module} has no {place.attribute}: name the suite as module:attribute")
    if isinstance(found, Suite):
        return found
    missing = [name for name in REQUIRED if not hasattr(found, name)]
    if missing:
        raise SuiteError(f"{place.module}:{place.attribute} is no suite: it lacks {', '.join(missing)}")
    return _Completed(found)


def find(spec: str | None = None, start: Path | None = None) -> Place:
    """Where the suite is that the user means. Raises SuiteError if there is none, or several to choose from."""
    start = (start or Path.cwd()).resolve()
    spec = spec or os.environ.get(VARIABLE)
    if spec:
        return _named(spec, start)
    for folder in (start, *start.parents):
        place = _of_folder(folder)
        if place is not None:
            return place
    installed = _installed()
    if len(installed) == 1:
        return next(iter(installed.values()))
    if installed:
        raise SuiteError(f"several suites are installed: choose one with --suite: {', '.join(sorted(installed))}")
    raise SuiteError(
        f"no suite: name one with --suite module[:attribute], or stand in a folder that has a {FILE} or a pyproject.toml with "
        f'[tool.kernelpair] suite = "module"'
    )


def _named(spec: str, start: Path) -> Place:
    """A module, a file .py, or the name of an installed suite."""
    name, _, attribute = spec.partition(":")
    if name.endswith(".py"):
        path = (start / name).resolve()
        if not path.is_file():
            raise SuiteError(f"--suite: there is no file {name}")
        return Place(path.stem, attribute or ATTRIBUTE, str(path.parent))
    installed = _installed()
    return installed[name] if name in installed and not attribute else Place(name, attribute or ATTRIBUTE, str(start))


def _of_folder(folder: Path) -> Place | None:
    description = folder / "pyproject.toml"
    if description.is_file():
        try:
            tools = tomllib.loads(description.read_text()).get("tool", {})
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            tools = {}  # somebody else's file, which says nothing that can be read
        spec = tools.get("kernelpair", {}).get("suite")
        if spec is not None:
            if not isinstance(spec, str) or not spec.partition(":")[0]:
                raise SuiteError(f"{description}: [tool.kernelpair] suite must be a text like module or module:attribute")
            module, _, attribute = spec.partition(":")
            return Place(module, attribute or ATTRIBUTE, str(folder))
    return Place(Path(FILE).stem, ATTRIBUTE, str(folder)) if (folder / FILE).is_file() else None


def _installed() -> dict[str, Place]:
    places = {}
    for entry in metadata.entry_points(group=GROUP):
        module, _, attribute = entry.value.partition(":")
        places[entry.name] = Place(module, attribute or ATTRIBUTE)
    return places


def loaded(suite: Suite, wanted: Collection[str] = ()) -> "tuple[dict[str, Pair], dict[str, str]]":
    """The pairs of these names, or all: those that can be imported, and of each other one what is wrong, with file and line."""
    known = suite.pairs()
    found: dict[str, Pair] = {}
    broken: dict[str, str] = {}
    for name in known:
        if not wanted or name in wanted:
            try:
                pair = known[name]
                suite.candidates(pair)  # whose kernel may be nothing that a worker can find
                found[name] = pair
            except Exception as error:  # noqa: BLE001 - one pair's mistake must not stop the others
                broken[name] = told(error)
    return found, broken


def usual_candidate(suite: Suite, pair: "Pair") -> Candidate:
    """The candidate that runs when nobody asks for one."""
    candidates = suite.candidates(pair)
    return next((candidate for candidate in candidates if candidate.name == suite.machine.usual(pair)), candidates[0])


class SavedLine(NamedTuple):
    """A case as it was saved, and where it stands (`file:line`), if it does in a file."""

    line: str
    place: str = ""


def saved_lines(suite: Suite, pair: str) -> tuple[SavedLine, ...]:
    """The saved cases of a pair."""
    return lines_in(suite.saved(pair))


def lines_in(path: Path) -> tuple[SavedLine, ...]:
    """The lines of a file of cases; none where there is no file."""
    if not path.is_file():
        return ()
    lines = path.read_text(errors="replace").splitlines()
    return tuple(SavedLine(line, f"{os.path.relpath(path)}:{number}") for number, line in enumerate(lines, 1) if line.strip())


Resolve = Callable[[str, str], "Subject"]
"""What is put on trial, by the names of pair and candidate, in whichever process needs it: it must pickle."""
