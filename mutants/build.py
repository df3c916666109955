"""Compiles a mutant into a library of its own: its sources anew, every other object as the ordinary build left it."""

import importlib.util
import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mutants import ROOT, Mutant, MutantError, patched
from optimized import build

QUICK = ("-O1", "-w")  # the bug is not about speed


@dataclass(frozen=True)
class Planted:
    """What a worker needs to run a mutant: the library ("" for the ordinary one) and patched modules of `optimized` by name."""

    library: str
    modules: tuple[tuple[str, str], ...]


def plant(mutant: Mutant, kernel: str, tier: str, folder: Path) -> Planted:
    """Build `mutant` of a pair whose kernel is the source `kernel` for `tier` in `folder`, which is emptied first.

    Raises MutantError where a patch does not apply or the result does not compile.
    """
    texts = patched(mutant)
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for file, text in texts.items():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    units = _units(mutant, kernel, texts)
    modules = [(file.removesuffix(".py").replace("/", "."), str(folder / file)) for file in texts if file.endswith(".py")]
    return Planted(_library(mutant, units, tier, folder) if units else "", tuple(modules))


def _units(mutant: Mutant, kernel: str, texts: dict[str, str]) -> list[str]:
    """The sources to compile: those that are patched themselves, and for headers what the mutant or its pair says."""
    units = [file for file in texts if file.endswith(".cpp")]
    if mutant.units:
        units += mutant.units
    elif any(file.endswith(".h") for file in texts):
        units.append(kernel)
    return list(dict.fromkeys(units))


@cache
def _commands() -> list[dict[str, Any]]:
    """How each source of the ordinary library was compiled."""
    path = Path(build()["build_directory"]) / "compile_commands.json"
    if not path.exists():
        raise MutantError(f"{path} does not exist: mutants need the build that `make build` makes")
    commands: list[dict[str, Any]] = json.loads(path.read_text())
    return commands


def _library(mutant: Mutant, units: list[str], tier: str, folder: Path) -> str:
    anew: dict[str, str] = {}
    for number, unit in enumerate(units):
        command = _command_of(mutant, unit, tier)
        anew[command["output"]] = str(folder / f"{number}.o")
        _run(mutant, _compilation(command, unit, folder, anew[command["output"]]), folder)
    directory = Path(_commands()[0]["directory"])
    objects = [anew.get(command["output"], str(directory / command["output"])) for command in _commands()]
    compiler = next(word for word in shlex.split(_commands()[0]["command"]) if word != "ccache")
    library = str(folder / "_kernels.so")
    _run(mutant, [compiler, "-shared", "-Wl,--no-as-needed", "-o", library, *objects, _torch()], folder)
    return library


def _command_of(mutant: Mutant, unit: str, tier: str) -> dict[str, Any]:
    for command in _commands():
        in_tier = f"/kernels_{tier}.dir/" in f"/{command['output']}" or not unit.startswith("csrc/kernels/")
        if Path(command["file"]) == ROOT / unit and in_tier:
            return command
    raise MutantError(f"{mutant.name}: {unit} is not compiled for {tier}")


def _compilation(command: dict[str, Any], unit: str, folder: Path, output: str) -> list[str]:
    """The ordinary command, quick, on the mutant's sources."""
    words = shlex.split(command["command"])
    for flag in ("-o", "-c"):
        at = words.index(flag)
        del words[at : at + 2]
    ours = f"-I{ROOT / 'csrc'}"
    words = [f"-I{folder / 'csrc'}" if word == ours else word for word in words]
    return [*words, *QUICK, "-o", output, "-c", str(folder / unit)]


def _torch() -> str:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so")


def _run(mutant: Mutant, command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        raise MutantError(f"{mutant.name} does not compile: {errors[0]}")
