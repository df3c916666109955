"""Other versions of our library, for mutants and for the base of a change: some sources compiled anew, every other object as
the ordinary build left it."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelpair.changes import INCLUDE, closure
from kernelpair.contract.candidate import Candidate
from kernelpair.mutation.mutant import Mutant, MutantError
from kernelpair.sources import BuildError, run, unpack_revision
from optimized import build
from optimized.library import library_path
from properties import ROOT

PACKAGES = ("optimized", "properties", "reference", "serving")
QUICK = ("-O1", "-w")  # the bug is not about speed
OTHERS = re.compile(r"/(_trap|first)\.dir/")  # objects of other libraries alone
_failed: dict[tuple[str, Path], str] = {}  # revisions that did not build in a folder, and why


@dataclass(frozen=True)
class Planted:
    """What a worker needs to run another version: the library ("" for the ordinary one) and patched modules of `optimized` by
    name."""

    library: str = ""
    modules: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PlantedCandidate(Candidate):
    """A candidate that loads a library of its own, and patched modules in the place of ours."""

    planted: Planted = Planted()

    def enter(self) -> None:
        if hasattr(torch.ops.kernelpair, "_tiers"):
            raise ImportError("the ordinary library is loaded already: another version needs a process of its own")
        if self.planted.library:
            os.environ["KERNELPAIR_LIBRARY"] = self.planted.library
        _replace(dict(self.planted.modules))
        super().enter()


def planted(candidate: Candidate, version: Planted) -> PlantedCandidate:
    """The candidate in another version of the library."""
    said = {spec.name: getattr(candidate, spec.name) for spec in fields(Candidate)}
    return PlantedCandidate(**said | {"common": ""}, planted=version)  # it has a library of its own


class _Patched(MetaPathFinder):
    """Finds modules by name in the files of another version."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the module is, if it is one of them."""
        return spec_from_file_location(fullname, self._files[fullname]) if fullname in self._files else None


def _replace(files: Mapping[str, str]) -> None:
    """Let modules come from other files, also for all of this repository that had loaded the ordinary ones."""
    if files:
        for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Patched(files))


def plant(mutant: Mutant, kernel: str, tier: str, folder: Path) -> Planted:
    """Build `mutant` of a pair whose kernel is the source `kernel` for `tier` in `folder`, which is emptied first.

    Raises MutantError where a patch does not apply or the result does not compile.
    """
    texts = mutant.patched(ROOT)
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for file, text in texts.items():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    sources = units(mutant, kernel, texts)
    modules = [(file.removesuffix(".py").replace("/", "."), str(folder / file)) for file in texts if file.endswith(".py")]
    return Planted(_library(mutant, sources, tier, folder) if sources else "", tuple(modules))


def units(mutant: Mutant, kernel: str, texts: dict[str, str]) -> list[str]:
    """The sources to compile: those that are patched themselves, and for headers what the mutant says, or else the kernel, those
    that it calls, and all operators that include one: of a function in several objects the linker keeps any.

    Raises MutantError for a header that none of them includes.
    """
    found = [file for file in texts if file.endswith(".cpp")]
    headers = {file for file in texts if file.endswith(".h")}
    if mutant.units:
        found += mutant.units
    elif headers:
        called = sorted(file.relative_to(ROOT).as_posix() for file in closure(ROOT, [ROOT / kernel], ("csrc",)))
        operators = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "csrc" / "ops").glob("*.cpp"))
        found += [kernel, *(file for file in called if file.startswith("csrc/kernels/") and file.endswith(".cpp"))]
        found += [file for file in operators if headers & included([file])]
    unread = headers - included(found)
    if unread:
        raise MutantError(f"{mutant.name}: {', '.join(sorted(unread))} is in none of {', '.join(found)}: say where, as `units`")
    return list(dict.fromkeys(found))


def included(sources: Sequence[str]) -> set[str]:
    """What the compiler reads of csrc for these sources: not, as `closure`, the sources of what they call."""
    seen: set[str] = set()
    waiting = list(sources)
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += _includes(file)
    return seen


@cache
def _includes(file: str) -> tuple[str, ...]:
    path = ROOT / file
    names = INCLUDE.findall(path.read_text()) if path.is_file() else ()
    return tuple(f"csrc/{name}" for name in names)


@cache
def compile_commands() -> list[dict[str, Any]]:
    """How each source of the ordinary library was compiled. Raises BuildError where this checkout has not compiled it."""
    path = Path(build()["build_directory"]) / "compile_commands.json"
    if not path.exists():
        raise BuildError(f"{path} does not exist: run `make build`")
    commands: list[dict[str, Any]] = json.loads(path.read_text())  # those of precompiled headers are not objects
    if any("output" not in command for command in commands):
        raise BuildError(f"{path} does not say what each command makes, for an older CMake wrote it: run `make build`")
    if not any(Path(command["file"]).is_relative_to(ROOT) for command in commands):
        forced = " without KERNELPAIR_LIBRARY, which names it" if os.environ.get("KERNELPAIR_LIBRARY") else ""
        raise BuildError(f"{library_path()} was compiled from the sources of another checkout: run `make build` here{forced}")
    return [command for command in commands if command["output"].endswith(".o") and not OTHERS.search(command["output"])]


@cache
def _owners() -> dict[tuple[str, str], str]:
    """(source, tier) -> the tier whose object of that kernel it runs, where that is another one."""
    return {(f"csrc/kernels/{stem}.cpp", tier): owner for stem, tier, owner in build()["shared"]}


def _counts(command: dict[str, Any], tier: str) -> bool:
    """Whether a tier runs what a command compiled: a source of all tiers, or a kernel for it or for whom it shares it with."""
    source = Path(command["file"])
    if not source.is_relative_to(ROOT / "csrc" / "kernels"):
        return True
    owner = _owners().get((source.relative_to(ROOT).as_posix(), tier), tier)
    return f"/kernels_{owner}.dir/" in f"/{command['output']}"


def _library(mutant: Mutant, units: list[str], tier: str, folder: Path) -> str:
    anew: dict[str, str] = {}
    for number, unit in enumerate(units):
        command = _command_of(mutant, unit, tier)
        anew[command["output"]] = str(folder / f"{number}.o")
        try:
            run(_compilation(command, unit, folder, anew[command["output"]]), folder)
        except BuildError as error:
            says = str(error).replace(f"{folder}/", "")  # the file as the mutant names it
            raise MutantError(f"{mutant.name} does not compile: {says}") from None
    library = folder / "_kernels.so"
    _link(lambda command: anew.get(command["output"]), library)
    return str(library)


def _link(anew: Callable[[dict[str, Any]], str | None], library: Path) -> None:
    """Link the ordinary build's objects into `library`, those apart that `anew` names another one for. Raises BuildError."""
    objects = [anew(command) or str(Path(command["directory"]) / command["output"]) for command in compile_commands()]
    run([compiler(), "-shared", "-Wl,--no-as-needed", "-o", str(library), *objects, _torch()], library.parent)


def compiler() -> str:
    """The compiler of the ordinary build."""
    return next(word for word in shlex.split(compile_commands()[0]["command"]) if word != "ccache")


def object_of(unit: str, tier: str) -> Path:
    """The object that the ordinary build made of a source for a tier. Raises BuildError where there is none."""
    for command in compile_commands():
        if Path(command["file"]) == ROOT / unit and _counts(command, tier):
            return Path(command["directory"]) / command["output"]
    raise BuildError(f"{unit} is not compiled for {tier}")


def library_with(objects: Mapping[Path, Path], library: Path) -> Path:
    """A library with other objects in the place of some of the ordinary build. Raises BuildError where it does not link."""
    anew = {str(old): str(new) for old, new in objects.items()}
    _link(lambda command: anew.get(str(Path(command["directory"]) / command["output"])), library)
    return library


def library_at(root: Path, revision: str, changed: Sequence[str], tier: str, folder: Path) -> Path:
    """A library that differs from the present one by the changed sources of csrc, as they were at `revision`, in `tier`.

    Only what they touch is compiled, with the commands of the ordinary build. Raises BuildError where that fails, and at once
    where it has failed in this folder before.
    """
    if (revision, folder) in _failed:
        raise BuildError(_failed[revision, folder])
    unpack_revision(root, revision, folder, "csrc")
    touched = {(root / file).resolve() for file in changed}
    anew: dict[str, str] = {}
    compilations = []
    for number, command in enumerate(compile_commands()):
        source = Path(command["file"])
        then = folder / (source.relative_to(root) if source.is_relative_to(root) else "generated")
        if _counts(command, tier) and then.is_file() and touched & closure(root, [source], ("csrc",)):
            anew[command["output"]] = str(folder / f"{number}.o")
            words = [f"-I{folder / 'csrc'}" if word == f"-I{root / 'csrc'}" else word for word in shlex.split(command["command"])]
            words[words.index("-o") + 1], words[words.index("-c") + 1] = anew[command["output"]], str(then)
            compilations.append((words, Path(command["directory"])))
    library = folder / "_kernels.so"
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
            list(compilers.map(lambda compilation: run(*compilation), compilations))  # the first error ends it
        _link(lambda command: anew.get(command["output"]), library)
    except BuildError as error:
        _failed[revision, folder] = str(error)
        raise
    return library


def _command_of(mutant: Mutant, unit: str, tier: str) -> dict[str, Any]:
    for command in compile_commands():
        if Path(command["file"]) == ROOT / unit and _counts(command, tier):
            return command
    of_header = not mutant.units and any(patch.file.endswith(".h") for patch in mutant.patches)
    advice = "; name the sources to compile for the patched header, as `units`" if of_header else ""
    raise MutantError(f"{mutant.name}: {unit} is not compiled for {tier}{advice}")


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
    spec = find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so")
