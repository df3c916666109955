"""How far a command is: n of m, and how long the rest takes."""

import io
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from kernelpair.report.last_line import CI_SECONDS
from kernelpair.report.steps import Steps
from tests.command_line import kernelpair


def _shown(terminal: bool, ci: bool, seconds: float) -> str:
    """Three steps of so many seconds."""
    clock = count(0.0, seconds)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=80)
    with Steps(console, 3, "rows", lambda: next(clock), ci) as steps:
        for name in ("first", "second", "third"):
            steps.begin(name)
            console.print(f"result of {name}")
    return stream.getvalue()


def test_a_terminal_shows_what_is_done_and_left() -> None:
    shown = _shown(True, False, 10.0)
    assert "0 of 3 rows · first" in shown and "1 of 3 rows · 0:20 left · second" in shown and "2 of 3 rows" in shown
    assert shown.index("result of first") < shown.index("1 of 3 rows")


@pytest.mark.parametrize(("seconds", "lines"), [(CI_SECONDS, 3), (0.1, 0)])
def test_a_log_of_ci_gets_a_line_now_and_then(seconds: float, lines: int) -> None:
    assert _shown(False, True, seconds).count("… ") == lines


def test_steps_that_run_at_once_count_when_they_end() -> None:
    steps = Steps(Console(file=io.StringIO()), 4, "mutants", iter((0.0, 60.0)).__next__, False)
    steps.ended("one")
    assert steps.says() == "1 of 4 mutants · 3:00 left"


def test_a_pipe_gets_results_alone() -> None:
    assert _shown(False, False, 10.0) == "result of first\nresult of second\nresult of third\n"


@pytest.mark.usefixtures("in_a_folder_of_its_own")
@pytest.mark.parametrize("against", [(), ("--against", "torch")])
def test_bench_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, against: tuple[str, ...]) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Steps, "begin", lambda self, name: begun.append(f"{name} of {self.many}"))
    assert kernelpair("bench", "gdn_gating", "--tier", "scalar", "--seconds", "0.01", *against) == 0
    assert begun == [f"gdn_gating {rows} x 32 of 3" for rows in (1, 64, 1024)] and not list(Path().iterdir())
