"""The history of runs: what is kept, and where nothing is."""

import math
from pathlib import Path

import pytest
from rich.console import Console

from kernelpair.cli.page import histories
from kernelpair.report import history
from kernelpair.report.history import Figure, History, RunFigure
from kernelpair.report.lines import PairResult

RESULT = PairResult("conv", "avx2", "pass", cases=100, seconds=4.0, tightness={"out": 0.5})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    revisions = iter(["a1", "b2", "c3"])
    monkeypatch.setattr(history, "revision", lambda root: next(revisions))
    return History(tmp_path / "kept" / "history.sqlite")


def test_runs_add_up_and_become_lines_over_commits(kept: History) -> None:
    kept.append("check", [RESULT])
    assert kept.series() == []  # one commit is no line
    kept.append("check", [PairResult("conv", "avx2", "pass", cases=300, seconds=4.0, tightness={"out": 0.25})])
    kept.append("mutate", [], [Figure("mutants", "conv", "", "", 97.0), Figure("mutants", "conv", "", "lost", math.nan)])
    found = {series.says: series for series in kept.series(["conv"])}
    assert found["cases a second"].commits == ["a1", "b2"] and found["cases a second"].lines == {"conv avx2": [25.0, 75.0]}
    assert found["largest error / bound"].lines == {"conv avx2 out": [0.5, 0.25]}
    assert [row.figure.value for row in kept.rows(what="mutants")] == [97.0]
    assert kept.rows(["other"]) == []


def test_rows_know_their_commit_and_machine(kept: History) -> None:
    kept.append("check", [RESULT])
    row = kept.rows(what="cases")[0]
    assert isinstance(row, RunFigure) and (row.revision, row.command) == ("a1", "check") and row.figure.pair == "conv"


def test_none_is_kept_in_ci_unless_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERNELPAIR_HISTORY", raising=False)
    monkeypatch.setenv("CI", "true")
    assert History.usual(tmp_path) is None
    monkeypatch.setenv("KERNELPAIR_HISTORY", "1")
    assert History.usual(tmp_path) is not None
    monkeypatch.setenv("KERNELPAIR_HISTORY", str(tmp_path / "h.sqlite"))
    kept = History.usual(tmp_path)
    assert kept is not None and kept.path == tmp_path / "h.sqlite"
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("KERNELPAIR_HISTORY", "0")
    assert History.usual(tmp_path) is None


def test_one_that_was_begun_on_a_full_disk_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.touch()
    assert History(path).rows() == History(path).series() == [] and not path.stat().st_size


def test_a_page_goes_without_a_file_that_is_no_history(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_text("these are words, and many of them: " * 99)
    assert histories(Console(width=200), History(path), [RESULT]) == []
    assert f"{path} is no history: file is not a database" in capsys.readouterr().out


def test_a_file_that_is_no_history_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_text("these are words, and many of them: " * 99)
    with pytest.raises(ValueError, match="is no history"):
        History(path).rows()
    History(path).append("check", [RESULT])  # and no run ends for it
    assert path.read_text().startswith("these are words")
