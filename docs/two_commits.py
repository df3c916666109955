"""What a start, a replay, a rebuild and a whole build take at two commits, measured in turns in one run.

    python docs/two_commits.py BEFORE [AFTER] [--rounds N] [--folder F [--built]]

Unpacks both commits, builds them without a cache of objects (not with --built), and prints a table of medians: seconds on the
clock, and in brackets seconds of CPU, which say more on a machine that does other work. Needs the packages of `make build`, which
both commits then use.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kernelpair.call.system import children, inherit_orphans
from kernelpair.environment import environment
from kernelpair.sources import unpack_revision
from kernelpair.timing.load import look

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
COMMAND = "import sys; from kernelpair.cli import main; sys.exit(main())"
LINE = '{"pair":"store_cache","v":1,"dtype":"bfloat16","rows":2}'
KERNEL = Path("csrc", "kernels", "store_cache.cpp")  # the one that is touched
SOURCE = Path("reference", "store_cache.py")  # of which an answer that is remembered depends
STARTS: Mapping[str, Sequence[str]] = {
    "`kernelpair --help`": ["--help"],
    "`kernelpair list`, after a change": ["list"],
    "`kernelpair list`, again": ["list"],
    "`kernelpair doctor`, after a change": ["doctor"],
    "`kernelpair doctor`, again": ["doctor"],
    "`kernelpair replay LINE --tier scalar`": ["replay", LINE, "--tier", "scalar"],
}
CHANGED = next(name for name in STARTS if name.endswith("after a change"))
BUILD, REBUILD = "whole build, all tiers", "rebuild after a change in one kernel"


class Taken(NamedTuple):
    clock: float
    cpu: float


@dataclass(frozen=True)
class Unpacked:
    """The files of one commit, without git, and its build."""

    commit: str
    folder: Path

    @property
    def build(self) -> Path:
        return self.folder / "build" / "release"

    def run(self, *command: str) -> Taken:
        """Run to the end. Raises CalledProcessError, with what it printed, where the status is not 0."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELPAIR", "CMAKE", "CCACHE"))}
        own = {"PYTHONPATH": str(self.folder), "KERNELPAIR_LIBRARY": str(self.build / "_kernels.so"), "CCACHE_DISABLE": "1"}
        others, before, began = children(), _cpu(), time.monotonic()
        subprocess.run(command, cwd=self.folder, env=clean | own, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        took = time.monotonic() - began
        while left := children() - others:  # running for a moment longer, such as the server of its workers
            for pid in left:
                os.waitpid(pid, 0)
        return Taken(took, _cpu() - before)

    def whole_build(self) -> Taken:
        shutil.rmtree(self.build, ignore_errors=True)
        tools = (f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}")
        self.run(str(BIN / "cmake"), "-S", ".", "-B", str(self.build), "-G", "Ninja", *tools)
        return self.run(str(BIN / "cmake"), "--build", str(self.build))

    def rebuild(self) -> Taken:
        _change(self.folder / KERNEL, "// changed\n")
        return self.run(str(BIN / "cmake"), "--build", str(self.build))

    def start(self, name: str) -> Taken:
        if name == CHANGED:
            _change(self.folder / SOURCE, "# changed\n")
        return self.run(sys.executable, "-P", "-c", COMMAND, *STARTS[name])


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _change(file: Path, line: str) -> None:
    file.write_text(file.read_text() + line)


def measured(checkouts: Sequence[Unpacked], rounds: int, built: bool) -> Iterator[tuple[str, Unpacked, Taken]]:
    """Each step of each checkout; who goes first changes from round to round."""
    for checkout in () if built else checkouts:
        yield BUILD, checkout, checkout.whole_build()
    for number in range(rounds):
        for name in (*STARTS, REBUILD):
            for checkout in checkouts if number % 2 else reversed(checkouts):
                yield name, checkout, checkout.rebuild() if name == REBUILD else checkout.start(name)


def table(taken: Mapping[str, Mapping[str, Sequence[Taken]]], commits: Sequence[str]) -> str:
    """Markdown, a row for each thing that was measured."""

    def cell(of: Sequence[Taken]) -> str:
        clock, cpu = (statistics.median(each) for each in zip(*of))
        return f"{clock:.2f} s ({cpu:.2f})"

    head = f"| | {' | '.join(commits)} |\n|---|{'--:|' * len(commits)}"
    return "\n".join([head, *(f"| {name} | {' | '.join(cell(by[each]) for each in commits)} |" for name, by in taken.items())])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", metavar="BEFORE")
    options.add_argument("after", metavar="AFTER", nargs="?", default="HEAD")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--folder", type=Path, help="where the commits are unpacked; without it a folder that vanishes")
    options.add_argument("--built", action="store_true", help="both lie in the folder already, and are not built as a whole")
    given = options.parse_args()
    if given.built and not given.folder:
        options.error("--built goes with --folder")
    inherit_orphans()
    with TemporaryDirectory() as folder:
        checkouts = []
        for revision in (given.before, given.after):
            short = subprocess.run(
                ["git", "rev-parse", "--short", revision], cwd=ROOT, capture_output=True, text=True, check=True
            )
            commit = short.stdout.strip()
            checkouts.append(Unpacked(commit, ((given.folder or Path(folder)) / commit).resolve()))
            if not given.built:
                unpack_revision(ROOT, commit, checkouts[-1].folder)
        machine = environment()
        print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}; {given.rounds} rounds")
        taken: dict[str, dict[str, list[Taken]]] = {}
        for load in ("before", "after"):
            found = look()
            print(f"{load}: {found.says if found.busy else 'nothing else runs'}", flush=True)
            for name, checkout, took in measured(checkouts, given.rounds, given.built) if load == "before" else ():
                taken.setdefault(name, {}).setdefault(checkout.commit, []).append(took)
                print(f"  {checkout.commit} {name}: {took.clock:.2f} s, {took.cpu:.2f} s of CPU", file=sys.stderr, flush=True)
        print(f"\n{table(taken, [checkout.commit for checkout in checkouts])}")


if __name__ == "__main__":
    main()
