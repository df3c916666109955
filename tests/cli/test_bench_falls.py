"""Our own kernel that does not come back from a call is a row with the reason; what else is timed goes on."""

import json
from pathlib import Path

import pytest

from kernelpair.timing.first_calls import FirstCalls
from kernelpair.timing.speeds import read
from tests.cli.falling_suite import FEW, MANY
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
SUITE = ("--suite", "tests.cli.falling_suite")
QUICK = ("--seconds", "0.01", "--json", "f.json")
FALLS = [
    ("faults", "crash: SIGSEGV"),
    ("traps", "crash: SIGILL"),
    ("leaves", "crash: it ended its process, status 0"),
    ("hangs", "no answer within 3 s"),
    ("faults_again", "crash: SIGSEGV"),
    ("raises", "ValueError: slots: too many"),
]

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.mark.parametrize(("pair", "says"), FALLS)
def test_a_kernel_of_ours_that_falls(capsys: Capture, monkeypatch: pytest.MonkeyPatch, pair: str, says: str) -> None:
    before = FirstCalls.settle

    def settle(self: FirstCalls) -> None:
        before(self)
        self.patience = 3.0  # from now on: torch is loaded

    if pair == "hangs":
        monkeypatch.setattr(FirstCalls, "settle", settle)
    assert kernelpair(*SUITE, "bench", pair, *QUICK) == 1
    few, many = json.loads(Path("f.json").read_text())["rows"]
    assert [each["name"] for each in few["competitors"]] == ["good", "bad", "torch"] and not few["failed"]
    assert [each["name"] for each in many["competitors"]] == ["good"] and many["failed"] == {"bad": says}
    out, _ = capsys.readouterr()
    assert f"{pair}  {MANY}\n  bad: not timed: {says}\n" in out
    assert out.endswith(f"{pair} [bad] failed before it could be timed; what is wrong: kernelpair check {pair} --tier bad\n")


def test_in_a_contest_it_is_a_row_too(capsys: Capture) -> None:
    assert kernelpair(*SUITE, "bench", "faults", *QUICK, "--against", "torch") == 1
    rows = read(Path("f.json")).rows
    assert [(row.row, row.tier, row.failed) for row in rows] == [
        (FEW, "good", ""), (FEW, "bad", ""), (MANY, "bad", "crash: SIGSEGV"), (MANY, "good", ""),
    ]  # fmt: skip
    assert [row.ours is None for row in rows] == [False, False, True, False]
    assert [row.ratio is None for row in rows] == [False, False, True, True]
    assert "  bad: not timed: crash: SIGSEGV\n" in capsys.readouterr().out
    assert kernelpair(*SUITE, "speed", "f.json", "page.md") == 0
    assert f"**faults: {MANY} (bad) was not timed**: crash: SIGSEGV." in Path("page.md").read_text()


def test_nothing_is_left_to_time(capsys: Capture) -> None:
    """A row that no candidate comes back from is a row all the same."""
    assert kernelpair(*SUITE, "bench", "faults", "--tier", "bad", "--row", MANY, *QUICK) == 1
    (row,) = json.loads(Path("f.json").read_text())["rows"]
    assert row["failed"] == {"bad": "crash: SIGSEGV"} and row["competitors"] == []
