"""What happens to a worker and is not the kernel's doing: somebody kills it, changes its priority, or limits its threads."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelpair.call.memory import Arena
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.runner import Isolated
from kernelpair.call.surroundings import SideEffect
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check
from kernelpair.trial.modes import MANY
from tests.kernels import kernel
from tests.selftest.toy import PAIR, ToyCase

ROWS = ToyCase(rows=3, width=5, spare=1, seed=7)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(1 << 24)


def found(runner: Isolated, case: ToyCase = ROWS) -> list[tuple[str, str]]:
    """Kinds and words of what is found in a good kernel."""
    with runner:
        verdict = check(Subject(PAIR, kernel("good")), case, runner)
    return [(failure.kind, failure.detail) for failure in verdict.failures]


class Killed(Isolated):
    """Whose worker somebody kills before each of so many calls."""

    times, number = 1, signal.SIGKILL

    def run(self, request: CallRequest, again: bool = False) -> Outcome:
        self.start()
        if self.times:
            self.times -= 1
            os.kill(self._pid, self.number)
        return super().run(request, again)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU, signal.SIGSEGV])
@pytest.mark.parametrize("times", [1, 2])
def test_a_call_whose_process_somebody_kills_is_made_once_more(arena: Arena, number: signal.Signals, times: int) -> None:
    runner = Killed(kernel("good"), preload=("properties.suite",), arena=arena)
    runner.number, runner.times = number, times
    failures = found(runner)
    assert [kind for kind, _ in failures] == ["crash"] * (times - 1)
    assert all(number.name in says for _, says in failures)


class Disturbed(Isolated):
    """Whose worker somebody gives another priority, or no memory, in so many calls that are looked at for it."""

    times = 1
    changes: dict[str, Any] = {}

    def run(self, request: CallRequest, again: bool = False) -> Outcome:
        outcome = super().run(request, again)
        if request.deep and self.times:
            self.times -= 1
            outcome = replace(outcome, **self.changes)
            self._stop()
        return outcome


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("settings", {"side_effects": (SideEffect("settings", "priority", "5 instead of 0"),), "spoiled": True}),
        ("exception", {"status": "exception", "error": "RuntimeError", "message": "DefaultCPUAllocator: can't allocate memory"}),
        ("exception", {"status": "exception", "error": "MemoryError", "message": "std::bad_alloc"}),
    ],
)
def test_a_call_that_somebody_disturbs_is_made_once_more(arena: Arena, kind: str, changes: dict[str, Any], times: int) -> None:
    runner = Disturbed(kernel("good"), preload=("properties.suite",), arena=arena)
    runner.times, runner.changes = times, changes
    assert [each for each, _ in found(runner, replace(ROWS, trial="aftermath"))] == [kind] * (times - 1)


def test_rows_beside_a_gap_are_in_no_huge_page(arena: Arena) -> None:
    about = Path("/proc/self/smaps").read_text().partition(f"{arena.address:x}-")[2].partition("VmFlags:")[2].partition("\n")[0]
    assert "nh" in about.split()


def test_no_call_has_more_threads_than_the_system_lets_start(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("kernelpair.trial.modes.lets_start", lambda threads: asked.append(threads) or threads < 5)
    with Isolated(kernel("good"), preload=("properties.suite",), arena=arena) as runner:
        verdict = check(Subject(PAIR, kernel("good")), replace(ROWS, trial="threads"), runner)
    assert verdict.passed and max(asked) == MANY and verdict.calls == 1 + sum(threads < 5 for threads in asked)
