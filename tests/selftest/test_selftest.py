"""The harness on trial: kernels with one fault of each class must be caught, and with the right word for it."""

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.search.search import SHRINK_SECONDS, Search
from kernelpair.search.tally import Tally
from tests.selftest.toy import FAULTS, PAIR, library, toy_candidate

CASES = 200


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The kernels are there before a worker's first call, which would be taken for a hang while it compiles them."""
    library()


def _try(name: str, shrink_seconds: float = 1.0) -> Tally:
    candidate = toy_candidate(name)
    with Isolated(candidate, preload=("properties.suite",), hang_seconds=2.0) as runner:
        return Search(Subject(PAIR, candidate), runner, shrink_seconds=shrink_seconds).run(CASES, None, 1, None)


def test_good_kernel_passes() -> None:
    tally = _try("good")
    assert tally.passed, tally.failures
    assert tally.cases == CASES


def test_the_path_that_is_claimed_and_taken_passes() -> None:
    tally = _try("takes_path")
    assert tally.passed, tally.failures
    assert tally.executed["fast products"] >= CASES


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_kernel_is_caught(fault: str) -> None:
    tally = _try(fault)
    assert tally.failures, f"{fault} passed {tally.cases} cases"
    kinds = {failure.kind for verdict in tally.failures.values() for failure in verdict.failures}
    assert kinds & FAULTS[fault], kinds
    assert set(tally.failures) <= FAULTS[fault], f"reported as {set(tally.failures)}"


@pytest.mark.parametrize("fault", ["segfault", "wrong_tail", "unwritten"])
def test_failure_shrinks(fault: str) -> None:
    (verdict,) = _try(fault, SHRINK_SECONDS).failures.values()
    assert verdict.case.rows == 1
    assert verdict.case.width == 1
    assert verdict.case.seed == 0
    assert not verdict.case.layout
