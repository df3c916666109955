"""What it costs to look at the state of the process around the calls of a trial.

    python -m tests.selftest.cost

tries the same cases with two workers in turns, one of which does not look, and compares the processor time that judge and worker
need. It does not depend on what else the machine does, as seconds would.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from kernelpair.call import caller
from kernelpair.call.runner import Isolated
from kernelpair.call.surroundings import STATE, Surroundings
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.trial.check import Journal, check, read_case
from properties import pairs
from properties.suite import SUITE, set_tier

MARK = "KERNELPAIR_COST"  # in the environment of what this process starts
NAME = "kernelpair-work"
CPU_CLOCK = 2  # of a process with all its threads, those that have ended too
PAIRS = ("store_cache", "gdn_gating", "packed_linear")


class Noted(Journal):
    """Keeps every line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def unwatched(name: str) -> None:
    """Run kernels in this tier, and let this process look at nothing from now on."""
    set_tier(name)
    state = Surroundings().read(deep=True)
    shallow = state[: len(STATE)]
    Surroundings.read = lambda self, deep=False: state if deep else shallow  # type: ignore[method-assign]
    caller.Caller._state = lambda self, request, alone: self.surroundings.read(request.deep)  # type: ignore[method-assign]
    caller.busy = lambda: False
    caller.held_bytes = lambda: (0, 0)


def cases(tried: Subject, number: int, folder: Path) -> list[str]:
    """Lines of so many cases, as a search with the seed 1 draws them."""
    journal = Noted(folder / "case")
    with Isolated(tried.candidate, preload=SUITE.preload) as runner:
        Search(tried, runner, journal=journal).run(number, None, 1, None)
    return journal.lines


def workers() -> set[str]:
    """The processes that this one has make calls."""
    mark, found = f"{MARK}={os.getpid()}".encode(), set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if (process / "comm").read_text().strip() == NAME and mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(process.name)
    return found


def used(pids: set[str]) -> float:
    """Seconds of a processor that this process and these have had."""
    clocks = [(~int(pid) << 3) | CPU_CLOCK for pid in pids]  # as clock_getcpuclockid makes them
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def seconds(tried: Subject, lines: Sequence[str], rounds: int) -> Iterator[tuple[str, list[float]]]:
    """The trial of each case, and the processor time that it takes: looking, not looking."""
    subjects = [tried, replace(tried, candidate=replace(tried.candidate, prepare=f"{__file__}:{unwatched.__name__}"))]
    with ExitStack() as stack:
        runners = [stack.enter_context(Isolated(each.candidate, preload=SUITE.preload)) for each in subjects]
        pids: list[set[str]] = []
        for runner in runners:
            runner.start()
            pids.append(workers() - set().union(*pids))
        for line in lines:
            case = read_case({tried.pair.name: tried.pair}, line)[1]
            took: list[list[float]] = [[], []]
            for turn in range(2 * rounds):
                which = (turn + turn // 2) % 2  # each begins every other round
                began = used(pids[which])
                check(subjects[which], case, runners[which])
                took[which].append(used(pids[which]) - began)
            yield case.trial, [median(each) for each in took]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.selftest.cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=300, help="of each pair (default 300)")
    parser.add_argument("--rounds", type=int, default=5, help="in which each case is tried once by either (default 5)")
    parser.add_argument("--tier", default="avx2")
    options = parser.parse_args(arguments)
    os.environ[MARK] = str(os.getpid())
    torch.set_num_threads(1)
    print("| pair | ms a case | without looking | share of looking | of which in `aftermath` |\n|---|--:|--:|--:|--:|")
    for name in PAIRS:
        tried = Subject(pairs()[name], next(each for each in SUITE.candidates(pairs()[name]) if each.name == options.tier))
        with TemporaryDirectory() as folder:
            lines = cases(tried, options.cases, Path(folder))
        taken = list(seconds(tried, lines, options.rounds))
        looking, not_looking = (sum(took[which] for _, took in taken) for which in range(2))
        deep = sum(took[0] - took[1] for trial, took in taken if trial == "aftermath")
        each = [1e3 * total / len(taken) for total in (looking, not_looking)]
        shares = [1 - not_looking / looking, deep / looking]
        print(f"| {name} | {each[0]:.2f} | {each[1]:.2f} | {shares[0]:.1%} | {shares[1]:.1%} |", flush=True)


if __name__ == "__main__":
    main()
