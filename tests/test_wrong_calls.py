"""Every error of a contract: some drawn case offers room for it, and then reference and kernel refuse and change nothing."""

from dataclasses import replace

import pytest

import properties
from kernelpair import drive, trials
from kernelpair.case import REJECTS, Case
from kernelpair.check import check
from kernelpair.drive import Drive
from kernelpair.pair import Pair
from kernelpair.run import Isolated, Runner
from kernelpair.verdict import Verdict
from optimized import best_tier
from properties.candidates import PYTHON, candidate

PAIRS = properties.pairs()
DRAWS = 2000
BEST = best_tier()


def cases_with_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """Wrong call -> the first drawn case that can be spoiled by it."""
    found: dict[str, Case] = {}

    def look(pair: Pair, candidate: object, case: Case, *rest: object) -> Verdict:
        for name in pair.bad.keys() - found.keys():
            if pair.bad[name].spoil(case, pair.inputs(case)) is not None:
                found[name] = replace(case, trial=REJECTS + name)
        return Verdict(case, "")

    with monkeypatch.context() as patch:
        patch.setattr(drive, "check", look)
        subject = candidate(pair, PYTHON if pair.tiers == PYTHON else BEST)
        Drive(pair, subject, Runner(), stopped=lambda: len(found) == len(pair.bad)).run(DRAWS, None, 1, None)
    return found


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_sides_refuse_and_change_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_with_room(pair, monkeypatch)
    assert not pair.bad.keys() - cases.keys(), f"no room for these in {DRAWS} cases"
    subject = candidate(pair, PYTHON if pair.tiers == PYTHON else BEST)
    monkeypatch.setattr(trials, "WRONG_CALLS", 1)
    with Isolated(subject, preload=("properties.candidates",)) as runner:
        verdicts = [check(pair, subject, case, runner) for case in cases.values()]
    failures = [f"{failure.kind}: {failure.detail}; {verdict.line}" for verdict in verdicts for failure in verdict.failures]
    assert not failures, "\n".join(failures)
    assert all(verdict.calls == 1 for verdict in verdicts)


def test_a_trial_makes_several_wrong_calls() -> None:
    pair = PAIRS["store_cache"]
    case = replace(pair.case(), trial=REJECTS + "index_negative")
    subject = candidate(pair, BEST)
    with Isolated(subject, preload=("properties.candidates",)) as runner:
        verdict = check(pair, subject, case, runner)
    room = [name for name, bad in pair.bad.items() if bad.spoil(case, pair.inputs(case)) is not None]
    assert verdict.passed and verdict.calls == min(trials.WRONG_CALLS, len(room)) > 1
