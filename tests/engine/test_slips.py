"""Usual slips: of a wrong kernel it is said which one it makes, and each slip that a pair names is one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.memory import Arena
from kernelpair.call.place import resolve, settle
from kernelpair.call.results import named_results
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.report.lines import failures_of
from kernelpair.search import slips as searching
from kernelpair.search.drawing import drawn_cases
from kernelpair.search.search import Search
from kernelpair.search.slips import LEAST, slips
from kernelpair.trial.check import check
from kernelpair.trial.judge import same
from properties.act_and_mul import PAIR as ACTIVATION
from properties.gdn_gating import PAIR as GATING
from properties.int8_linear import PAIR as BYTES
from properties.rms_norm import PAIR as NORM
from tests.outside.plain_torch import rms_norm
from tests.selftest.toy import PAIR as TOY
from tests.selftest.toy import ToyCase

CASES = 300
WRONG = {
    "gemma": (NORM, "gemma's weight were not one more"),
    "eps": (NORM, "eps were added to the root, not below it"),
    "rate": (GATING, "A_log were the rate, not its logarithm"),
    "halves": (BYTES, "in its quantizer halves were rounded away from zero, not to even"),
    "second": (ACTIVATION, "the second half went through the activation, not the first"),  # where the contract's is finite, too
}
gemma, eps, rate, halves, second = (pair.slips[says] for pair, says in WRONG.values())


def gemma_and_more(**given: Any) -> Tensor | None:
    """Two defects: the slip, and a column of float16."""
    out = rms_norm.call(**given | {"gemma": False})
    changed = given["x"] if out is None else out
    if changed.dtype == torch.float16 and changed.numel():
        changed[..., -1] += 64.0
    return out


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SECONDS", 600.0)


def _judged(pair: Pair, name: str) -> str:
    """What is said of a kernel of this module."""
    candidate = Candidate("wrong", f"{__name__}:{name}")
    with InProcess(candidate, Arena.create()) as runner:

        def judge(subject: Subject, case: Case) -> Verdict:
            return check(subject, case, runner)

        subject, failing = Subject(pair, candidate, foreign=True), list[Case]()
        for case in drawn_cases(pair.cases.strategy, CASES, 1):
            if judge(subject, case).failures:
                failing.append(case)
        return slips(subject, failing, judge, lambda: False)


@pytest.mark.parametrize("name", WRONG)
def test_the_slip_is_said(name: str) -> None:
    pair, says = WRONG[name]
    assert _judged(pair, name).startswith(f"computes as if {says}: so in ")


def test_other_failures_beside_it_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "CASES", CASES)
    monkeypatch.setattr(searching, "MOST_OF_THEM", 0.1)
    says = _judged(NORM, "gemma_and_more")
    assert says.startswith("computes as if gemma's weight were not one more: so in ") and "each of" not in says


def test_so_it_is_in_a_search_beside_what_failing_cases_share() -> None:
    candidate = Candidate("wrong", f"{__name__}:gemma")
    with InProcess(candidate, Arena.create()) as runner:
        tally = Search(Subject(NORM, candidate), runner, trial="value", explain=True, shrink_seconds=2.0).run(100, None, 1, None)
    (shared,) = tally.shared.values()
    (verdict,) = tally.failures.values()
    assert shared.splitlines()[0].startswith("fails ") and "gemma's weight" in shared.splitlines()[1]
    assert {report.shared for report in failures_of(verdict, "wrong", shared=shared)} == {shared}


@pytest.mark.parametrize(("error", "right"), [(2.0**-15, True), (0.5, False)])
def test_what_lies_far_off_by_the_contract_is_right_by_a_slip_where_it_lies_near(error: float, right: bool) -> None:
    """And what does not is wrong by it."""
    truth = torch.tensor([1.0, -2.0, 1e300, 3.0, math.nan], dtype=torch.float64)
    got = torch.tensor([1.0, -2.0, math.inf, 3.0 + error, 5.0])
    met = searching._met(truth, got, True)
    assert met[:3].tolist() == [1.0, -2.0, math.inf] and met[4] == math.inf
    assert bool(met[3] == got[3]) is right


def _with(slip: Callable[..., Any]) -> Pair:
    return replace(TOY, slips={"it slept": slip})


@pytest.mark.parametrize(
    ("failing", "says"), [(LEAST, f"computes as if it slept: so in each of {LEAST} failing cases"), (LEAST - 1, "")]
)
def test_few_cases_say_nothing(failing: int, says: str) -> None:
    pair = _with(lambda **given: None)

    def judge(subject: Subject, case: Case) -> Verdict:
        verdict = Verdict(case, "")
        wrong = subject.pair.reference is TOY.reference and case.seed == 0
        verdict.failures += [Failure("value", "out", "far off")] if wrong else []
        return verdict

    cases = [ToyCase(rows=rows) for rows in range(1, failing + 1)]
    assert slips(Subject(pair, Candidate("wrong", "nowhere:wrong")), cases, judge, lambda: False) == says


def test_where_few_cases_fail_the_smallest_is_judged_with_other_numbers() -> None:
    pair = _with(lambda **given: None)

    def judge(subject: Subject, case: Case) -> Verdict:
        return Verdict(case, "", [Failure("value", "out", "far off")] if subject.pair.reference is TOY.reference else [])

    says = slips(Subject(pair, Candidate("wrong", "nowhere:wrong")), [ToyCase(rows=3)], judge, lambda: False)
    assert says == f"computes as if it slept: so in each of {searching.CASES} failing cases"


def _outputs(pair: Pair, function: Callable[..., Any], case: Case) -> dict[str, Any]:
    """What a call of the case leaves."""
    given = resolve(settle(pair, case, pair.cases.inputs(case)))
    result = named_results(function(**given), tuple(pair.signature.results))
    return {name: given[name] for name in pair.signature.written if isinstance(given.get(name), Tensor)} | result


@pytest.mark.parametrize("name", [name for name, pair in properties.pairs().items() if pair.slips])
def test_each_slip_gives_something_else_in_some_case(name: str) -> None:
    pair = properties.pairs()[name]
    left = dict(pair.slips)
    for case in drawn_cases(pair.cases.strategy, CASES, 1):
        truth = _outputs(pair, pair.reference, case) if left else {}
        for says, slip in list(left.items()):
            try:
                found = _outputs(pair, slip, case)
            except (TypeError, ValueError, IndexError, RuntimeError):  # the case has no place for it
                continue
            if not same(found, truth):
                del left[says]
    assert not left
