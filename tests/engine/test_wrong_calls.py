"""Every error of a contract: some drawn case offers room for it, and then reference and kernel refuse and change nothing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import properties
from kernelpair.call.runner import Isolated, Runner
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.search import search as searching
from kernelpair.search.search import Search
from kernelpair.trial import refusals as trials
from kernelpair.trial.check import check
from optimized import best_tier
from properties.shared.laid_over import laid_over
from properties.suite import PYTHON, candidate

PAIRS = properties.pairs()
DRAWS = 2000
BEST = best_tier()


def cases_with_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """Wrong call -> the first drawn case that has room for it."""
    found: dict[str, Case] = {}

    def look(subject: object, case: Case, *rest: object) -> Verdict:
        for name in pair.wrong_calls.keys() - found.keys():
            if pair.wrong_calls[name].make(case, pair.cases.inputs(case)) is not None:
                found[name] = replace(case, trial=WRONG_CALL + name)
        return Verdict(case, "")

    with monkeypatch.context() as patch:
        patch.setattr(searching, "check", look)
        subject = candidate(pair, PYTHON if pair.tiers == PYTHON else BEST)
        Search(Subject(pair, subject), Runner(), stopped=lambda: len(found) == len(pair.wrong_calls)).run(DRAWS, None, 1, None)
    return found


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_sides_refuse_and_change_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_with_room(pair, monkeypatch)
    assert not pair.wrong_calls.keys() - cases.keys(), f"no room for these in {DRAWS} cases"
    subject = candidate(pair, PYTHON if pair.tiers == PYTHON else BEST)
    monkeypatch.setattr(trials, "enough_wrong_calls", lambda pair: 1)
    with Isolated(subject, preload=("properties.suite",)) as runner:
        verdicts = [check(Subject(pair, subject), case, runner) for case in cases.values()]
    failures = [f"{failure.kind}: {failure.detail}; {verdict.line}" for verdict in verdicts for failure in verdict.failures]
    assert not failures, "\n".join(failures)
    assert all(verdict.calls == 1 for verdict in verdicts)


def test_a_trial_makes_several_wrong_calls() -> None:
    pair = PAIRS["store_cache"]
    case = replace(pair.cases.type(), trial=WRONG_CALL + "index_negative")
    subject = candidate(pair, BEST)
    with Isolated(subject, preload=("properties.suite",)) as runner:
        verdict = check(Subject(pair, subject), case, runner)
    room = [name for name, bad in pair.wrong_calls.items() if bad.make(case, pair.cases.inputs(case)) is not None]
    assert verdict.passed and verdict.calls == min(trials.enough_wrong_calls(pair), len(room)) > 1


def test_rows_in_turn_take_no_more_than_some_memory() -> None:
    """A row of a megabyte between any two of a table of 70,000 rows would take 70 GB."""
    case = SimpleNamespace(seed=12, layout={}, int32=())
    call = laid_over(("wide",), ("long",))
    long, small = torch.zeros(70_000, 16), torch.zeros(3, 16)
    assert call.make(case, {"wide": torch.zeros(3, 2**18), "long": long}) is None
    made = call.make(case, {"wide": small, "long": long})
    assert made is not None and made["wide"].stride(0) == 2 * 16 - 1  # each begins in the last element of the one before it


def test_a_wrong_row_of_an_expanded_argument_is_in_the_call() -> None:
    """The layout gives every row the first one's memory: the entry that is wrong lies in the last."""
    pair = PAIRS["pack_int4_weight"]
    codes = replace(pair.cases.type(), layout={"codes": "expanded"}, N=7, K=1, trial=WRONG_CALL + "code_above")
    subject = candidate(pair, BEST)
    with Isolated(subject, preload=("properties.suite",)) as runner:
        assert check(Subject(pair, subject), codes, runner).passed
