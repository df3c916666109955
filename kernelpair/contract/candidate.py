"""A candidate: whatever is put on trial. It is found again by name in the process that runs it."""

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A callable with the reference's parameters, by the place where it is found.

    `entry` is `package.module:attribute` or `path/to/file.py:attribute`; `prepare`, of the same form, is called once with
    the candidate's name in the process that runs it (to select a tier); `ran` is called before each call with True and
    after it with False and then returns the name of what really ran, or None where the candidate cannot tell; `paths` returns
    the names of the paths through its code that were taken since it was last called. All of it can be pickled.
    """

    name: str
    entry: str
    prepare: str = ""
    ran: str = ""
    paths: str = ""
    on_trial: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of a process that puts the candidate on trial; they are not set where it is timed."""
    run_as: str = ""
    """How the candidate runs where the machine lacks what it needs, such as "trapped". Reports say so, and it is not timed."""
    executed: str = ""
    """Place of a function that returns what was executed since it was last called: "amx loads" -> how many, the first word
    being the path; or None where that cannot be seen here."""
    left: str = ""
    """Place of a function that says after a call what it left behind in the process or its CPU, such as a mode; empty for
    nothing. That is the failure `left_behind`."""
    claims: str = ""
    """A path, such as "amx", that its calls take. A call that silently takes another one is the failure `wrong_path`."""
    tell: str = ""
    """Place of a function that makes the process see another CPU (`OtherCpu.tell`)."""
    slow: bool = False
    """Whether it gets only the cases that the pair calls small (`Cases.small`)."""
    common: str = ""
    """Place of a function that loads what this candidate has in common with others, such as a library, and chooses nothing in
    it. The server of their workers calls it once; it must start no thread and leave its process as it was."""

    @property
    def modules(self) -> list[str]:
        """The modules that it names, but for files."""
        places = (self.entry, self.prepare, self.ran, self.paths, self.executed, self.left)
        named = [place.partition(":")[0] for place in places if place]
        return [name for name in dict.fromkeys(named) if not name.endswith(".py")]

    def load(self) -> Callable[..., Any]:
        """The callable itself."""
        return called(self.entry)

    def begin(self) -> None:
        """Make a process that has done nothing yet see the CPU that the candidate is to run on."""
        if self.tell:
            called(self.tell)(True)

    def enter_for_trial(self) -> None:
        """Make the process ready to put this candidate on trial."""
        for name, value in self.on_trial.items():
            os.environ.setdefault(name, value)
        self.enter()

    def enter(self) -> None:
        """Make the process ready for this candidate."""
        if self.prepare:
            called(self.prepare)(self.name)
        if self.tell:
            called(self.tell)(False)

    def observer(self) -> Callable[[bool], str | None]:
        """Tells which tier ran."""
        return called(self.ran) if self.ran else lambda before: None

    def surveyor(self) -> Callable[[], Sequence[str]]:
        """Tells which paths were taken since the last time."""
        return called(self.paths) if self.paths else lambda: ()

    def counter(self) -> Callable[[], Mapping[str, int] | None]:
        """Tells which instructions were executed since the last time."""
        return called(self.executed) if self.executed else lambda: None

    def inspector(self) -> Callable[[], str]:
        """Says what the last call left behind."""
        return called(self.left) if self.left else lambda: ""


@dataclass(frozen=True)
class Elsewhere(Candidate):
    """A candidate from a copy of its repository: with a planted bug, or as it was at another revision.

    Modules that this process already has from `root` and that the copy has too are forgotten, so that they come from the copy.
    """

    root: str = ""
    copy: str = ""

    def enter(self) -> None:
        MOVED[self.root] = self.copy
        sys.path[:] = [self.copy, *(entry for entry in sys.path if os.path.realpath(entry or ".") != self.root)]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(self.root) and Path(self.copy, Path(file).relative_to(self.root)).is_file():
                del sys.modules[name]
        importlib.invalidate_caches()
        super().enter()


def elsewhere(candidate: Candidate, root: Path, copy: Path) -> Elsewhere:
    """The candidate from a copy of its repository."""
    said = {spec.name: getattr(candidate, spec.name) for spec in fields(Candidate)}
    return Elsewhere(**said | {"common": ""}, root=os.path.realpath(root), copy=os.path.realpath(copy))


MOVED: dict[str, str] = {}
"""Folder of a repository -> the copy that this process has in its place."""


def moved(path: str) -> str:
    """The path, or the one in its place within a copy."""
    for root, copy in MOVED.items():
        if path and Path(os.path.realpath(path)).is_relative_to(root):
            return str(Path(copy, Path(os.path.realpath(path)).relative_to(root)))
    return path


def called(entry: str) -> Callable[..., Any]:
    """The callable at a place."""
    place, _, attribute = entry.partition(":")
    module = module_of_file(Path(moved(place))) if place.endswith(".py") else importlib.import_module(place)
    found = reduce(getattr, attribute.split("."), module)
    if not callable(found):
        raise TypeError(f"{entry} is a {type(found).__name__}, not a callable")
    return found


def module_of_file(path: Path) -> ModuleType:
    """Import a file, once, under a name of its own. Raises ImportError."""
    name = f"kernelpair_file_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot import {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
