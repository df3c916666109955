"""A candidate: whatever is put on trial. It is found again by name in the process that runs it."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    the names of the ways through its code that were taken since it was last called.
    """

    name: str
    entry: str
    prepare: str = ""
    ran: str = ""
    paths: str = ""

    def load(self) -> Callable[..., Any]:
        """The callable itself."""
        return _callable(self.entry)

    def enter(self) -> None:
        """Make the process ready for this candidate."""
        if self.prepare:
            _callable(self.prepare)(self.name)

    def observer(self) -> Callable[[bool], str | None]:
        """Tells which tier ran."""
        return _callable(self.ran) if self.ran else lambda before: None

    def surveyor(self) -> Callable[[], Sequence[str]]:
        """Tells which ways were taken since the last time."""
        return _callable(self.paths) if self.paths else lambda: ()


def _callable(entry: str) -> Callable[..., Any]:
    place, _, attribute = entry.partition(":")
    module = module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
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
