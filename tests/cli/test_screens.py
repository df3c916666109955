"""`kernelpair check` as it is seen: in a pipe, on a terminal of 80 columns, and in the log of CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import COMMAND
from tests.processes import heed_signals
from tests.screens import COLUMNS, ROOT, assert_as_kept, masked, on_a_terminal, usual_environment

CHECK = ("check", "--seed", "1", "--examples", "60")
FAILS, ALL_IS_WELL = (), ("scale_rows",)
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;)")
PROGRESS = re.compile(r"^… [012] of 3 trials · [\d,]+ cases · [\d,]+/s( · 1 failed)?( · \d+:\d\d left)?\n", re.MULTILINE)


def _environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return usual_environment(PYTHONPATH=paths, KERNELPAIR_SUITE="tests.cli.screens_suite", **more)


def _one_after_another() -> None:
    """On one core, so that the trials end in their order."""
    heed_signals()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _command(*arguments: str) -> list[str]:
    return [*COMMAND, *CHECK, *arguments]


def _piped(folder: Path, *arguments: str, **more: str) -> tuple[int, str]:
    done = subprocess.run(
        _command(*arguments), cwd=folder, env=_environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=_one_after_another, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "name"), [(FAILS, 1, "fails"), (ALL_IS_WELL, 0, "passes")], ids=["fails", "passes"]
)
def test_a_pipe_gets_plain_lines(tmp_path: Path, arguments: tuple[str, ...], status: int, name: str) -> None:
    ended, seen = _piped(tmp_path, *arguments)
    assert ended == status, seen
    assert "\x1b" not in seen
    assert_as_kept(f"piped-{name}", seen)


def test_a_log_of_ci_gets_a_line_now_and_then(tmp_path: Path) -> None:
    ended, seen = _piped(tmp_path, CI="true")
    assert ended == 1 and "\x1b" not in seen, seen
    assert PROGRESS.search(seen) and "1 failed ·" in seen and " left\n" in seen, seen
    assert_as_kept("ci", PROGRESS.sub("", seen))  # how many come between two trials is a matter of time


def _two_are_through(shown: str) -> bool:
    return all(part in shown for part in ("candidate", "scale_slowly", "✗ scale_tails", "2 of 3 trials", "left"))


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
def test_a_terminal_gets_a_table_that_vanishes(tmp_path: Path, colour: bool) -> None:
    variables = _environment() if colour else _environment(NO_COLOR="1")
    ended, every, seen, table = on_a_terminal(_command(), tmp_path, variables, _one_after_another, _two_are_through)
    assert ended == 1, seen
    assert bool(COLOUR.search(every)) is colour
    table = table[table.rindex("pair  ") :]  # lines that ended before stand above it
    assert_as_kept("terminal-table", table)
    assert_as_kept("terminal", seen)
    assert "left" not in masked(seen) and max(map(len, table.splitlines())) <= COLUMNS
