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
SHELL = ("_", "OLDPWD", "PWD", "SHLVL")  # variables by which a shell keeps its own books
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
    variables = sorted((name, value) for name, value in os.environ.items() if name not in SHELL)
    digest.update(repr((sys.version, sys.path, variables, machine)).encode())
    return digest.hexdigest()


def _files(suite: Suite) -> Iterator[Path]:
    yield from (suite.root / name for name in source_files(suite.root))
    yield from (suite.root / name for name in suite.sources.built)
    yield from Path(kernelpair.__file__).parent.rglob("*.py")
    yield from map(Path, site.getsitepackages())  # their time changes when a package comes or goes
    yield from (Path(value) for value in os.environ.values() if os.path.isfile(value))  # a library built elsewhere
