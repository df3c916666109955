"""What is counted over a run."""

from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.search.tally import Tally
from tests.selftest.toy import PAIR, ToyCase


def test_nothing_is_said_of_the_bound_of_an_output_that_is_wrong() -> None:
    """Only the cases that passed are known, such as those in which every bound is large."""
    wrong = Verdict(ToyCase(), "", [Failure("value", "out", "far off")])
    tally = Tally(looseness={name: [2.0] * 30 for name in ("out", "other")}, failures={"value": wrong})
    tally.judge_bounds(PAIR)
    assert [failure.tensor for failure in tally.vacuous] == ["other"]
