"""Benches of the working tree's library against the base's: two processes, sample by sample in turns."""

import json
import os
import shlex
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from kernelpair.changes import closure
from kernelpair.run import not_on_trial
from optimized import build

SAMPLES = (7, 60)  # of each side, at least and at most
NOISE = 0.05  # a ratio below 1.05 is noise whatever the quartiles say


@dataclass(frozen=True)
class Ratio:
    """Time now over time at the base, of one row: the median of the samples' ratios, and their quartiles."""

    pair: str
    row: str
    median: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Three of four samples are slower, and by more than noise."""
        return self.low > 1.0 and self.median > 1.0 + NOISE


def base_library(root: Path, revision: str, changed: Sequence[str], tier: str, folder: Path) -> Path:
    """A library that differs from the present one by the changed sources of csrc, as they were at `revision`, in `tier`.

    Only what they touch is compiled, with the commands of the ordinary build. Raises RuntimeError where that fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / "csrc.tar"
    _run(["git", "-C", str(root), "archive", "--output", str(archive), revision, "csrc"])
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    described = Path(build()["build_directory"]) / "compile_commands.json"
    if not described.is_file():
        raise RuntimeError(f"{described} does not exist: run `make build`")
    commands = json.loads(described.read_text())
    touched = {(root / file).resolve() for file in changed}
    objects = []
    for number, command in enumerate(commands):
        source, output = Path(command["file"]), str(Path(command["directory"]) / command["output"])
        then = folder / source.relative_to(root)
        counts = "/csrc/kernels/" not in command["file"] or f"/kernels_{tier}.dir/" in f"/{command['output']}"
        if counts and touched & closure(root, [source]) and then.is_file():
            output = str(folder / f"{number}.o")
            words = [f"-I{folder / 'csrc'}" if word == f"-I{root / 'csrc'}" else word for word in shlex.split(command["command"])]
            words[words.index("-o") + 1], words[words.index("-c") + 1] = output, str(then)
            _run(words, Path(command["directory"]))
        objects.append(output)
    compiler = next(word for word in shlex.split(commands[0]["command"]) if word != "ccache")
    torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    library = folder / "_kernels.so"
    _run([compiler, "-shared", "-Wl,--no-as-needed", "-o", str(library), *objects, str(torch_library)])
    return library


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"the base does not build: {next((line for line in lines if 'error' in line), lines[-1])}")


def compare(pair: str, tier: str, base: Path, seconds: float) -> Ratio:
    """Time the pair's first bench row with both libraries. Raises RuntimeError where one of them cannot run it."""
    context = get_context("spawn")
    sides = []
    for library in ("", str(base)):
        ours, theirs = context.Pipe()
        process = context.Process(target=_side, args=(theirs, library, pair, tier), daemon=True)
        with not_on_trial():
            process.start()
        sides.append((ours, process))
    try:
        row, _ = [_answer(connection) for connection, _ in sides]
        ratios: list[float] = []
        until = time.monotonic() + seconds
        while len(ratios) < SAMPLES[0] or (len(ratios) < SAMPLES[1] and time.monotonic() < until):
            if len(ratios) % 2:  # who goes first changes, so that neither profits
                then, now = _ask(sides[1][0]), _ask(sides[0][0])
            else:
                now, then = _ask(sides[0][0]), _ask(sides[1][0])
            ratios.append(now / then)
    finally:
        for connection, process in sides:
            connection.close()
            process.join(2)
            process.kill()
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return Ratio(pair, str(row), statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])


def _ask(connection: Connection) -> float:
    connection.send(True)
    return float(_answer(connection))


def _answer(connection: Connection) -> Any:
    try:
        answer = connection.recv()
    except EOFError:
        raise RuntimeError("a bench process died") from None
    if isinstance(answer, Exception):
        raise RuntimeError(str(answer))
    return answer


def _side(connection: Connection, library: str, pair: str, tier: str) -> None:
    """One library's process: prepares the row, then times a sample whenever it is asked."""
    try:
        if library:
            os.environ["KERNELPAIR_LIBRARY"] = library
        import properties
        from kernelpair.place import resolve
        from kernelpair.timing import _repeats, _sample
        from optimized import set_tier
        from properties.candidates import PYTHON

        with not_on_trial():
            found = properties.pairs()[pair]  # the library is loaded here
        if tier != PYTHON:
            set_tier(tier)
        arguments = resolve(found.bench[0].arguments())
        call = found.prepare_bench(arguments) if found.prepare_bench else lambda: found.optimized(**arguments)
        repeats = _repeats(call)
        connection.send(found.bench[0].name)
        while True:
            connection.recv()
            connection.send(_sample(call, repeats))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side says it
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
