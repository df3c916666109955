"""The harness on trial: kernels that are hardly ever wrong. What chance alone catches is measured (`odd.py`), not asserted."""

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from tests.selftest.odd import DRAWN, SWEPT, caught_after, main, subject

CASES = 200


def _try(kernel: str) -> Tally:
    tried = subject(SWEPT, kernel)
    with Isolated(tried.candidate, preload=("properties.suite",)) as runner:
        return Search(tried, runner).run(CASES, None, 1, None)


def test_a_kernel_that_is_right_passes() -> None:
    tally = _try("good")
    assert tally.passed, tally.failures
    assert tally.cases == CASES
    assert tally.trials["series"] > 0
    assert tally.calls > 1000


@pytest.mark.parametrize("which", range(1, 6))
def test_a_single_wrong_value_is_caught_and_shrunk(which: int) -> None:
    (verdict,) = _try(f"wrong_value_{which}").failures.values()
    assert verdict.failures[0].kind == "value"
    assert verdict.case.every
    assert verdict.case.rows == 1


def test_the_thousandth_call_is_caught() -> None:
    verdict = _try("wrong_call").failures["nondeterministic"]
    assert verdict.case.trial == "series"
    assert verdict.failures[0].tensor == "y"
    assert "of a series gives something else than the first" in verdict.failures[0].detail


def test_an_alignment_is_caught() -> None:
    assert "value" in _try("wrong_alignment").failures


def test_a_run_with_fewer_cases_has_no_room_for_a_series() -> None:
    assert caught_after(subject(DRAWN, "wrong_call"), 20, 1) is None


def test_the_program_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--runs", "1", "--cases", "60", "--only", "swept"])
    assert "| one value of 65,536, all of them swept | 1 of 1 | 1 |" in capsys.readouterr().out
