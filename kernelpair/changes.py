"""What changed against another revision, and which pairs and tiers that touches: by what their files include and import."""

import ast
import inspect
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from kernelpair.contract.pair import Pair
from kernelpair.providers.named import ProviderError, known
from kernelpair.providers.provider import provider
from kernelpair.sources import NATIVE, source_files
from kernelpair.suite import Suite, loaded

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TIMED = ("kernel", "optimized")  # roles of files that a call spends its time in
UNITS = (".c", ".cc", ".cpp", ".cxx")  # a header's own source, which has its name
MAINS = ("origin/HEAD", "origin/main", "main", "origin/master", "master")  # the remote's default branch, else the usual names


class RevisionError(ValueError):
    """git does not know the revision; the message says what to give."""


@dataclass
class Affected:
    """Pairs touched by a change, each with its tiers (empty: all), and the files that did it."""

    tiers: dict[str, set[str]] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    compiled: set[str] = field(default_factory=set)
    """Pairs whose kernel changed, or what is compiled into it."""
    everything: list[str] = field(default_factory=list)
    """Files that touch all pairs alike."""
    own: set[str] = field(default_factory=set)
    """Pairs that are touched by a file which does not touch all pairs alike."""


def base_revision(root: Path, wanted: str | None) -> str:
    """The commit to compare with: the one asked for, or where this branch left the main one. Raises RevisionError."""
    shallow = _git(root, "rev-parse", "--is-shallow-repository") == "true"
    for name in [wanted] if wanted else MAINS[shallow:]:  # of a shallow clone the default branch may be all that it has
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if found:
            return found if wanted else _git(root, "merge-base", "HEAD", found) or found
    why = "; this clone is shallow: fetch all of its history (in a workflow: fetch-depth: 0)" if shallow else ""
    unknown = f"git knows no revision {wanted!r}" if wanted else "there is no branch main or master: give --base REV"
    raise RevisionError(unknown + why)


def changed_files(root: Path, base: str) -> list[str]:
    """Paths in `root` that differ from the base, committed or not, new files among them."""
    tracked = _git(root, "diff", "-z", "--name-only", "--relative", base).split("\0")
    return sorted({*tracked, *_git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")} - {""})


def is_new(suite: Suite, pair: Pair, base: str) -> bool:
    """Whether the base has none of the files in which the pair's kernel is."""
    files = {file for role, file in suite.files(pair).items() if role in TIMED}
    return bool(files) and not any(_git(suite.root, "rev-parse", "--verify", "--quiet", f"{base}:./{file}") for file in files)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def affected(suite: Suite, files: Iterable[str], needs: "Needs | None" = None) -> Affected:
    """Which pairs the changed files touch."""
    found, sources = Affected(), suite.sources
    needs = needs or Needs.of(suite)
    changed = list(files)
    found.everything = [file for file in changed if needs.is_alike(file)]
    for name, pair in loaded(suite)[0].items():
        own = [file for file in changed if file not in found.everything and suite.root / file in needs.all[name]]
        if own:
            found.own.add(name)
            found.tiers[name] = set() if found.everything else sources.tiers_touched(own)
            timed = [suite.root / file for role, file in suite.files(pair).items() if role in TIMED]
            if any(sources.is_native(file) or suite.root / file in timed for file in own):
                found.compiled.add(name)
        if own or found.everything:
            found.tiers.setdefault(name, set())
            found.files[name] = own + found.everything
    return found


@dataclass(frozen=True)
class Needs:
    """Which files each pair depends on."""

    suite: Suite
    all: Mapping[str, set[Path]]

    @classmethod
    def of(cls, suite: Suite, called: Mapping[str, Collection[str] | None] = MappingProxyType({})) -> "Needs":
        """By what its files include and import, and by the operators that it calls (None: any)."""
        pairs, folders = loaded(suite)[0], suite.sources.include_folders
        needs: dict[str, set[Path]] = {}
        for name, pair in pairs.items():
            roles = [suite.root / file for role, file in suite.files(pair).items() if role != "contract"]
            needs[name] = closure(suite.root, [*roles, *_registering(suite, called.get(name, ()))], folders)
            needs[name].add(suite.saved(name).resolve())
        for path, about in suite.mutants().items():
            for name in [about] if about else pairs:
                needs[name].add(path.resolve())
        for name, path in _adapters(suite.root.resolve()):
            if name in needs:
                needs[name] |= {file for file in closure(suite.root, [path], folders) if file.is_relative_to(path.parent)}
        return cls(suite, needs)

    def is_alike(self, file: str) -> bool:
        """Whether the file touches all pairs alike: the suite says so, or it is `counted` and no pair is known to need it."""
        sources = self.suite.sources
        if _is_within(file, sources.everything):
            return True
        return _is_within(file, sources.counted) and not any(self.suite.root / file in files for files in self.all.values())


def _registering(suite: Suite, called: Collection[str] | None) -> list[Path]:
    """The compiled files of these operators; of unknown ones every compiled file."""
    if called is None:
        return [suite.root / file for file in source_files(suite.root) if file.suffix in NATIVE]
    return [path for operator in called for path in suite.sources.registering(suite.root, operator)]


def _adapters(root: Path) -> Iterator[tuple[str, Path]]:
    """Each pair that a provider of this repository adapts, and where."""
    for spec in known():
        with suppress(ProviderError):  # one that does not import here adapts nothing that could be tried
            found = provider(spec)
            for pair in found.adapters:
                path = Path(inspect.getsourcefile(found.adapter(pair).call) or "").resolve()
                if path.is_relative_to(root):
                    yield pair, path


def _is_within(file: str, names: Sequence[str]) -> bool:
    """Is it one of these files, or in one of these folders, which end in a slash?"""
    return any(file == name or (name.endswith("/") and file.startswith(name)) for name in names)


def closure(root: Path, files: Iterable[Path], folders: Sequence[str]) -> set[Path]:
    """The files, and all that they include or import within the project; includes are looked for in `folders` too."""
    seen: set[Path] = set()
    root, places = root.resolve(), tuple(folders)
    waiting = [file.resolve() for file in files if file.is_file()]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += [needed for needed in _needs(root, file, places) if needed not in seen]
    return {file for file in seen if file.is_relative_to(root)}


@cache
def _needs(root: Path, file: Path, folders: tuple[str, ...]) -> tuple[Path, ...]:
    try:
        text = file.read_text()
        return tuple(_imports(root, file, text) if file.suffix == ".py" else _includes(root, file, text, folders))
    except (OSError, UnicodeDecodeError, SyntaxError):
        return ()


def _includes(root: Path, file: Path, text: str, folders: tuple[str, ...]) -> list[Path]:
    places = (file.parent, *(root / folder for folder in folders))
    found = [place / name for name in INCLUDE.findall(text) for place in places if (place / name).is_file()]
    sources = [header.with_suffix(suffix) for header in found for suffix in UNITS if header.with_suffix(suffix).is_file()]
    return [path.resolve() for path in found + sources]


def _imports(root: Path, file: Path, text: str) -> list[Path]:
    """Modules of the project: those in its root, and those beside the file where it is no module of a package."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = _package(root, file, node.level)
            module = ".".join(filter(None, (package, node.module)))
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    found, places = [], [root] if (file.parent / "__init__.py").is_file() else [root, file.parent]
    for name in filter(None, names):
        for place in places:
            path = place / Path(*name.split("."))
            modules = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
            packages = [folder / "__init__.py" for folder in path.parents if folder.is_relative_to(place) and folder != place]
            found += [*modules, *(each for each in packages if modules and each.is_file())]
    return [path.resolve() for path in found]


def _package(root: Path, file: Path, level: int) -> str:
    """The package that a relative import starts from; empty where it is none."""
    if not level or not file.is_relative_to(root):
        return ""
    return ".".join(file.relative_to(root).parent.parts[: len(file.relative_to(root).parts) - level])
