"""A failing case is on disk when its run has ended, and the next run starts with it."""

from pathlib import Path

from kernelpair.call.runner import InProcess
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from tests.selftest.toy import PAIR, toy_candidate


def _run(database: Path, examples: int, seed: int, shrink_seconds: float = 20.0) -> Tally:
    candidate = toy_candidate("unwritten")
    with InProcess(candidate) as runner:
        search = Search(Subject(PAIR, candidate), runner, trial="value", shrink_seconds=shrink_seconds)
        return search.run(examples, None, seed, database)


def test_the_next_run_starts_with_what_failed_before(tmp_path: Path) -> None:
    assert _run(tmp_path, examples=100, seed=1).failures
    assert _run(tmp_path, examples=1, seed=2).failures
    assert not _run(tmp_path / "empty", examples=1, seed=2).failures, "this seed must not fail by itself at once"


def test_a_case_whose_shrinking_was_cut_short_is_shrunk_by_the_next_run(tmp_path: Path) -> None:
    (cut,) = _run(tmp_path, examples=100, seed=1, shrink_seconds=0.0).failures.values()
    (shrunk,) = _run(tmp_path, examples=1, seed=2).failures.values()
    (fresh,) = _run(tmp_path / "empty", examples=100, seed=1).failures.values()
    assert len(shrunk.line) < len(cut.line), "this seed must not draw its smallest case first"
    assert shrunk.line == fresh.line
