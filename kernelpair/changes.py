"""What changed against another revision, and which pairs and tiers that touches: by what their files include and import."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kernelpair.pair import Pair

PACKAGES = ("reference", "optimized", "properties")
ENGINE = ("kernelpair/", "CMakeLists.txt", "pyproject.toml")
"""Whatever changes here touches every pair alike."""
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TILES = re.compile(r"csrc/common/(tile|soft_tile|tile_block|dot_block|tile_pack|\w+_tiles|decode_pairs)\.(h|cpp)$")
"""Only the tiers that multiply tiles of bf16 compile these in."""
TILE_TIERS = ("avx512_bf16", "amx", "amx_emulated")


class RevisionError(ValueError):
    """git does not know the revision; the message says what to give."""


@dataclass
class Affected:
    """Pairs touched by a change, each with its tiers (empty: all), and the files that did it."""

    tiers: dict[str, set[str]] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    compiled: set[str] = field(default_factory=set)
    """Pairs whose compiled kernel changed."""
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
    """Paths that differ from the base, committed or not, new files among them."""
    tracked = _git(root, "diff", "--name-only", base).splitlines()
    return sorted({*tracked, *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()})


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def affected(root: Path, pairs: Mapping[str, Pair], files: Iterable[str]) -> Affected:
    """Which pairs the changed files touch."""
    found = Affected()
    changed = list(files)
    found.everything = [file for file in changed if file.startswith(ENGINE)]
    for name, pair in pairs.items():
        needs = closure(root, [root / file for role, file in pair.files.items() if role != "contract"])
        touched = [file for file in changed if root / file in needs or file.startswith(f"tests/corpus/{name}/")]
        if touched:
            only_tiles = all(TILES.search(file) for file in touched)
            found.tiers[name] = set(TILE_TIERS) if only_tiles else set()
            found.files[name] = touched
            if any(file.startswith("csrc/") for file in touched):
                found.compiled.add(name)
    return found


def closure(root: Path, files: Iterable[Path]) -> set[Path]:
    """The files, and all that they include or import within the project, engine apart."""
    seen: set[Path] = set()
    waiting = [file for file in files if file.is_file()]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += [needed for needed in _needs(root, file) if needed not in seen]
    return seen


@cache
def _needs(root: Path, file: Path) -> tuple[Path, ...]:
    if not file.is_file():
        return ()
    text = file.read_text()
    reader: Callable[[Path, Path, str], list[Path]] = _imports if file.suffix == ".py" else _includes
    return tuple(reader(root, file, text))


def _includes(root: Path, file: Path, text: str) -> list[Path]:
    places = (file.parent, root / "csrc", root / "csrc" / "common")
    found = [place / name for name in INCLUDE.findall(text) for place in places if (place / name).is_file()]
    sources = [header.with_suffix(".cpp") for header in found if header.with_suffix(".cpp").is_file()]
    return [path.resolve() for path in found + sources]


def _imports(root: Path, file: Path, text: str) -> list[Path]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = [root / Path(*name.split(".")).with_suffix(".py") for name in names if name.split(".")[0] in PACKAGES]
    return [path for path in paths if path.is_file()]
