"""A failing case is on disk when its run has ended, and the next run starts with it."""

from pathlib import Path

from kernelpair.call.runner import InProcess
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from tests.selftest.toy import PAIR, toy_candidate


def _run(database: Path, examples: int, seed: int) -> Tally:
    candidate = toy_candidate("unwritten")
    with InProcess(candidate) as runner:
        return Search(Subject(PAIR, candidate), runner, trial="value").run(examples, None, seed, database)


def test_the_next_run_starts_with_what_failed_before(tmp_path: Path) -> None:
    assert _run(tmp_path, examples=100, seed=1).failures
    assert _run(tmp_path, examples=1, seed=2).failures
    assert not _run(tmp_path / "empty", examples=1, seed=2).failures, "this seed must not fail by itself at once"
