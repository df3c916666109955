"""The sources of a suite's kernels: what they depend on, how they are built, how another version of them is made."""

import io
import math
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernelpair.contract.candidate import Candidate, elsewhere

if TYPE_CHECKING:
    from kernelpair.contract.pair import Pair
    from kernelpair.mutation.mutant import Mutant

NATIVE = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inc", ".S", ".s", ".asm", ".rs", ".f90", ".zig")
STATE = (".kernelpair/", ".hypothesis/")  # the engine's own, of a repository that does not ignore them
STEP = re.compile(r"\[(\d+)/(\d+)\]")  # at the beginning of a line of Ninja's
TELL_SECONDS = 5.0  # between two words about a build
LEFT_OUT = ("__pycache__", "build", "dist", "node_modules")  # of a copy, where git cannot say what belongs to the sources


class BuildError(RuntimeError):
    """A build failed; the message holds its first error."""


@dataclass(frozen=True)
class Sources:
    """What the engine asks about files. The defaults serve a repository whose kernels a few commands build."""

    build: Sequence[str] = ()
    """Commands that bring everything compiled up to date, run in the suite's folder, or in a copy of it."""
    built: Sequence[str] = ()
    """Files that a build makes and that the suite's own answers depend on, such as which tiers there are."""
    everything: Sequence[str] = ("pyproject.toml", "CMakeLists.txt", "meson.build", "setup.py", "Cargo.toml")
    """Files, and folders with a slash at the end, that touch every pair alike."""
    counted: Sequence[str] = ()
    """Files and such folders that always have an effect: a file that no pair is known to need touches all pairs."""
    registers: str = r"\b(?:def|impl)\s*\(\s*\"(?:\w+::)?{name}\b"
    """A regular expression for the place in a source that registers the operator `name`."""
    include_folders: Sequence[str] = (".", "include", "src")
    """Where an #include "..." is looked for, beside the folder of the file that has it."""

    def bring_up_to_date(self, folder: Path) -> None:
        """Build in `folder`. Raises BuildError."""
        for command in self.build:
            run(shlex.split(command), folder)

    def is_native(self, file: str) -> bool:
        """Is the file compiled, so that the speed of what it touches may change?"""
        return Path(file).suffix in NATIVE

    def registering(self, root: Path, operator: str) -> list[Path]:
        """The compiled files that register an operator; where none is recognised, those that so much as name it."""
        name = re.escape(operator.rpartition("::")[2])
        places = [re.compile(self.registers.format(name=name)), re.compile(rf"\b{name}\b")]
        texts = _native_texts(root)
        found = ([file for file, text in texts.items() if place.search(text)] for place in places)
        return next((files for files in found if files), [])

    def tiers_touched(self, files: Collection[str]) -> set[str]:
        """The tiers that these files of one pair can touch; empty for all."""
        return set()

    def unplantable(self, root: Path) -> str:
        """Why no mutant of what is compiled can be planted here; empty where one can."""
        return ""

    def plant(self, root: Path, pair: "Pair", candidate: Candidate, mutant: "Mutant", folder: Path) -> Candidate:
        """The candidate with the mutant's bug in it, built in `folder`. Raises BuildError or MutantError."""
        texts = mutant.patched(root)
        copy_sources(root, folder)
        for file, text in texts.items():
            (folder / file).write_text(text)
        self.bring_up_to_date(folder)
        return elsewhere(candidate, root, folder)

    def at_revision(
        self, root: Path, pair: "Pair", candidate: Candidate, revision: str, changed: Sequence[str], folder: Path
    ) -> Candidate:
        """The candidate as it was at a revision of git, built in `folder`. Raises BuildError."""
        if not (folder / ".complete").exists():
            unpack_revision(root, revision, folder)
            self.bring_up_to_date(folder)
            (folder / ".complete").touch()
        return elsewhere(candidate, root, folder)


@cache
def _native_texts(root: Path) -> dict[Path, str]:
    """The compiled sources of a repository."""
    files = [root / file for file in source_files(root) if file.suffix in NATIVE]
    return {file: file.read_text(errors="replace") for file in files}


def run(command: Sequence[str], folder: Path) -> str:
    """What the command prints. Raises BuildError with its first error."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise BuildError(_first_error((done.stderr or done.stdout).strip().splitlines()))
    return done.stdout


def run_told(
    command: Sequence[str], folder: Path, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic
) -> None:
    """Run a build that numbers its steps as Ninja does, and tell after the first how far it is, then every few seconds. Raises
    BuildError with its first error."""
    lines, started, told = list[str](), clock(), -math.inf
    try:
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                step, now = STEP.match(line), clock()
                if step is not None and int(step[1]) and now - told > TELL_SECONDS:
                    done, many, told = int(step[1]), int(step[2]), now
                    left = (now - started) / max(done, 1) * (many - done)
                    tell(f"building what has changed: {done} of {many} steps, {left:.0f} s left")
    except OSError as error:
        raise BuildError(f"{command[0]}: {error}") from None
    if process.returncode:
        raise BuildError(_first_error(lines))


def _first_error(lines: Sequence[str]) -> str:
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")


def unpack_revision(root: Path, revision: str, folder: Path, *paths: str) -> None:
    """The files of `root` as they were at a revision, in `folder`, which is emptied first. Raises BuildError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done = subprocess.run(["git", "-C", str(root), "archive", revision, *paths], capture_output=True, check=False)
    if done.returncode:
        raise BuildError(done.stderr.decode(errors="replace").strip() or f"git has no revision {revision}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # it is there from Python 3.11.4 on
        for member in tar:
            tar.extract(member, folder)


def copy_sources(root: Path, folder: Path) -> None:
    """What git tracks or would track of `root`, in `folder`, which is emptied first; without git all but hidden folders."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in source_files(root):
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, target)


def source_files(root: Path) -> list[Path]:
    """Paths relative to `root`."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        names = [Path(name) for name in listed.stdout.decode().split("\0") if name and not name.startswith(STATE)]
        return [name for name in names if (root / name).is_file()]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if _holds_sources(Path(folder, name)))
        found += [Path(folder, name).relative_to(root) for name in sorted(files)]
    return found


def _holds_sources(folder: Path) -> bool:
    """No hidden folder, no results of a build, no environment of Python."""
    return not folder.name.startswith(".") and folder.name not in LEFT_OUT and not (folder / "pyvenv.cfg").exists()
