"""Answers that take seconds to find, because a suite loads torch, kept until something that they depend on has changed."""

import hashlib
import json
import os
import site
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kernelpair
from kernelpair.environment import cpu
from kernelpair.report.files import WriteError, write_whole
from kernelpair.sources import source_files
from kernelpair.suite import Place, Suite

FILE = Path(".kernelpair") / "answers.json"
BOOKS = (  # variables by which a shell, make or an activated environment keeps its own books
    "_", "OLDPWD", "PWD", "SHLVL", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MAKE_TERMERR", "MAKE_TERMOUT", "MFLAGS",
    "PS1", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT",
)  # fmt: skip
MOST = 32  # answers in the file: pairs that somebody lists one by one, environments that take turns


def remembered(
    place: Place, suite: Suite, question: str, ask: Callable[[], dict[str, Any]], keep: Callable[[dict[str, Any]], bool] = bool
) -> dict[str, Any]:
    """What `ask` answers, or answered when this question was last asked in the same surroundings. An answer for which `keep` is
    false is forgotten. Answers are remembered only for a suite in a folder, where its sources can be looked at."""
    if not place.folder:
        return ask()
    path = suite.root / FILE
    key = f"{question} {_surroundings(suite)}"
    known = _read(path)
    if key in known:
        return known[key]
    answer = json.loads(json.dumps(ask()))  # as it will be read again
    if keep(answer):
        entries = list(_read(path).items())[1 - MOST :]
        with suppress(OSError, WriteError):  # a checkout that is read-only: it is asked again
            path.parent.mkdir(exist_ok=True)
            write_whole(path, json.dumps(dict([*entries, (key, answer)])) + "\n")
    return answer


def _read(path: Path) -> dict[str, dict[str, Any]]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def _surroundings(suite: Suite) -> str:
    """A digest of what a suite may look at when it is asked: files, installed packages, environment, machine."""
    digest = hashlib.sha256()
    for name in sorted(map(str, _files(suite))):
        with suppress(OSError):
            is_now = os.stat(name)
            digest.update(f"{name}\0{is_now.st_size} {is_now.st_mtime_ns}\n".encode())
    machine = (os.uname(), cpu("model name"), cpu("flags"), sorted(os.sched_getaffinity(0)))
    digest.update(repr((sys.version, sys.path, sorted(_variables().items()), machine)).encode())
    return digest.hexdigest()


def _variables() -> dict[str, str]:
    """The environment, the same whether or not the folder of this Python is in the path of commands."""
    variables = {name: value for name, value in os.environ.items() if name not in BOOKS}
    here = os.path.dirname(sys.executable)
    variables["PATH"] = os.pathsep.join(part for part in variables.get("PATH", "").split(os.pathsep) if part != here)
    return variables


def _files(suite: Suite) -> Iterator[Path]:
    yield from (suite.root / name for name in source_files(suite.root))
    yield from (suite.root / name for name in suite.sources.built)
    yield from Path(kernelpair.__file__).parent.rglob("*.py")
    yield from map(Path, site.getsitepackages())  # their time changes when a package comes or goes
    yield from (Path(value) for value in _variables().values() if os.path.isfile(value))  # a library built elsewhere
