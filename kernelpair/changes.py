"""What changed against another revision, and which pairs and tiers that touches: by what their files include and import."""

import ast
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernelpair.suite import Suite, loaded

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TIMED = ("kernel", "optimized")  # roles of files that a call spends its time in
UNITS = (".c", ".cc", ".cpp", ".cxx")  # a header's own source, which has its name


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


def base_revision(root: Path, wanted: str | None) -> str:
    """The commit to compare with: the one asked for, or where this branch left main. Raises RevisionError."""
    for name in [wanted] if wanted else ["origin/main", "main"]:
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if found:
            return found if wanted else _git(root, "merge-base", "HEAD", found) or found
    raise RevisionError(f"git knows no revision {wanted!r}" if wanted else "there is no branch main: give --base REV")


def changed_files(root: Path, base: str) -> list[str]:
    """Paths in `root` that differ from the base, committed or not, new files among them."""
    tracked = _git(root, "diff", "--name-only", "--relative", base).splitlines()
    return sorted({*tracked, *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()})


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def affected(suite: Suite, files: Iterable[str]) -> Affected:
    """Which pairs the changed files touch."""
    found, root, sources = Affected(), suite.root, suite.sources
    changed = list(files)
    found.everything = [file for file in changed if _is_within(file, sources.everything)]
    for name, pair in loaded(suite)[0].items():
        roles = {role: root / file for role, file in suite.files(pair).items() if role != "contract"}
        needs = _of_pairs(suite, closure(root, roles.values(), sources.include_folders))
        saved = suite.saved(name)
        touched = [file for file in changed if root / file in needs or root / file == saved]
        if touched:
            found.tiers[name] = sources.tiers_touched(touched)
            found.files[name] = touched
            timed = [file for role, file in roles.items() if role in TIMED]
            if any(sources.is_native(file) or root / file in timed for file in touched):
                found.compiled.add(name)
    return found


def _of_pairs(suite: Suite, files: set[Path]) -> set[Path]:
    """Without those that touch every pair alike."""
    outside = suite.sources.everything
    return {file for file in files if not _is_within(str(file.relative_to(suite.root)), outside)}


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
            found += [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
    return [path.resolve() for path in found]


def _package(root: Path, file: Path, level: int) -> str:
    """The package that a relative import starts from; empty where it is none."""
    if not level or not file.is_relative_to(root):
        return ""
    return ".".join(file.relative_to(root).parent.parts[: len(file.relative_to(root).parts) - level])
