"""Truth and bound of a case are evaluated once for all candidates of a pair, and never in place of judging."""

from dataclasses import replace

import pytest
from torch import Tensor

from kernelpair.call.runner import InProcess
from kernelpair.contract.pair import Pair, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from kernelpair.trial import truths as keeping
from kernelpair.trial.check import check
from kernelpair.trial.purity import SWITCH
from kernelpair.trial.truths import Truths
from tests.kernels import kernel
from tests.selftest import toy
from tests.selftest.toy import ToyCase

CASE, OTHER = ToyCase(rows=3, width=5, seed=7), ToyCase(rows=4, width=5, seed=7)


class AskedReference:
    """The toy pair, whose reference counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.pair: Pair = replace(toy.PAIR, reference=self.reference)

    def reference(self, x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
        self.asked += 1
        toy.reference(x, slots, out, scale)

    def tried(self, truths: Truths | None, case: ToyCase = CASE, name: str = "good", pair: Pair | None = None) -> Verdict:
        return check(Subject(pair or self.pair, kernel(name)), case, InProcess(kernel(name)), truths=truths)


def test_of_a_case_that_another_candidate_was_given_nothing_is_evaluated_anew() -> None:
    counted, truths = AskedReference(), Truths()
    assert counted.tried(truths).passed and counted.asked == 1
    assert counted.tried(truths).passed and counted.asked == 1
    assert counted.tried(truths, name="off_by_an_eighth").failures and counted.asked == 1
    assert counted.tried(truths, OTHER).passed and counted.asked == 2
    assert counted.tried(None).passed and counted.asked == 3


def test_every_candidate_is_judged_as_if_it_were_alone() -> None:
    def run(name: str, truths: Truths | None) -> Tally:
        with InProcess(kernel(name)) as runner:
            return Search(Subject(toy.PAIR, kernel(name)), runner, truths=truths).run(60, None, 3, None)

    truths = Truths()
    for name in ("good", "off_from_three_rows", "two_faults", "good"):
        shared, alone = run(name, truths), run(name, None)
        assert (shared.cases, shared.trials, shared.ratios) == (alone.cases, alone.trials, alone.ratios)
        assert _failures(shared) == _failures(alone)


def _failures(tally: Tally) -> dict[str, tuple[str, str]]:
    return {kind: (verdict.line, repr(verdict.failures)) for kind, verdict in tally.failures.items()}  # NaN is no NaN's equal


def test_another_pair_and_another_bound_have_their_own() -> None:
    counted, truths = AskedReference(), Truths()
    counted.tried(truths)
    no_room = Within(lambda case, given, truth: {"out": truth["out"].abs() * 0})
    wrong = replace(counted.pair, truth=no_room)
    assert counted.tried(truths, pair=wrong).passed and counted.asked == 2
    assert not counted.tried(truths, name="off_by_an_eighth", pair=wrong).passed and counted.asked == 2
    assert counted.tried(truths).passed and counted.asked == 3


def test_what_somebody_has_changed_is_made_anew() -> None:
    counted, truths = AskedReference(), Truths()
    counted.tried(truths)
    for truth, *_ in truths._kept.values():
        truth["out"].add_(1.0)
    assert counted.tried(truths).passed and counted.asked == 2


def test_where_purity_is_looked_at_the_judging_code_runs_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, truths = AskedReference(), Truths()
    counted.tried(truths)
    monkeypatch.setenv(SWITCH, "1")
    assert counted.tried(truths).passed and counted.asked == 2


def test_the_first_cases_are_kept_and_those_for_which_there_is_no_room_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, truths = AskedReference(), Truths()
    counted.tried(truths)
    monkeypatch.setattr(keeping, "MOST_BYTES", truths._bytes)
    for asked in (2, 3):
        assert counted.tried(truths, OTHER).passed and counted.asked == asked
    assert counted.tried(truths).passed and counted.asked == 3
