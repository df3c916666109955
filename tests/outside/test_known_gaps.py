"""A library that misses the bound by a little in nearly every call hides nothing: gross bugs behind the gap are reported as new,
and shrunk without slipping into the gap."""

from functools import cache

import pytest

import properties
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair, Within
from kernelpair.contract.subject import WRONG_CALLS, Subject
from kernelpair.contract.verdict import Failure
from kernelpair.pytest_plugin import profile_name
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally
from tests.outside import behind_a_gap

PAIRS = {"STEP": "gated_delta_rule_update", "CHUNK": "chunk_gated_delta_rule"}
BUGS = [(side, name) for side in PAIRS for name in vars(getattr(behind_a_gap, side)) if name != "gap"]
QUICK = [("STEP", "other_heads"), ("CHUNK", "scaled")]
TRIED = BUGS if profile_name() == "nightly" else QUICK  # half a minute each
KNOWN = 9.0  # bounds up to which the ledger knows the gap: a whole head is off by more bounds than one element
SECONDS = 300.0  # of a search, and of its shrinking: cases end it, also on a machine with much else to do


def subject(side: str, name: str, rounding: str = "") -> Subject:
    pair: Pair = properties.pairs()[PAIRS[side or "STEP"]]
    kernel = Candidate("theirs", f"tests.outside.behind_a_gap:{f'{side}.{name}'.removeprefix('.')}")
    limits = {
        "no exact sums": lambda case: getattr(case, "exact", False),
        "one form only": lambda case: getattr(case, "accurate", False),  # whose bound is tighter
    }
    skipped = (WRONG_CALLS, "fuzz", "neighbours", "concurrent")
    return Subject(pair, kernel, limits, skipped_trials=skipped, rounding=rounding, foreign=True)


def searched(on_trial: Subject, known: dict[str, tuple[Case, float | None]], examples: int = 60) -> Tally:
    with InProcess(on_trial.candidate) as runner:
        search = Search(on_trial, runner, trial="value", several=True, shrink_seconds=SECONDS)
        search.recall(known)
        return search.run(examples, SECONDS, 3, None)


def worst(tally: Tally) -> dict[str, float]:
    """Label of each new group -> the ratio of its smallest case."""
    def size(label: str, failures: list[Failure]) -> float:
        return max(f.worst for f in failures if label.startswith(f"{f.kind} {f.tensor}:"))

    return {label: size(label, verdict.failures) for label, verdict in tally.failures.items()}


@cache
def gap(side: str) -> dict[str, tuple[Case, float | None]]:
    """What a ledger says of the gap: its groups, each known up to a ratio."""
    tally = searched(subject(side, "gap"), {})
    assert tally.failures and all(1.0 < ratio < KNOWN for ratio in worst(tally).values()), worst(tally)
    assert all(1.0 < ratio < KNOWN for _, ratio in tally.groups.values())
    return {label: (verdict.case, KNOWN) for label, verdict in tally.failures.items()}


@pytest.mark.parametrize(("side", "name"), TRIED)
def test_a_gross_bug_behind_a_known_gap_is_new_and_shrunk(side: str, name: str) -> None:
    known = gap(side)
    tally = searched(subject(side, name), known)
    new = worst(tally)
    assert new and all(ratio > KNOWN for ratio in new.values()), new
    case = min((verdict.case for verdict in tally.failures.values()), key=lambda case: len(repr(case)))
    assert case.requests <= 2 if side == "STEP" else sum(case.lengths) <= 8, case


def test_the_gap_alone_is_known_and_in_most_cases() -> None:
    tally = searched(subject("STEP", "gap"), gap("STEP"))
    assert not tally.failures and set(tally.known) == set(gap("STEP"))
    assert sum(cases for cases, _ in tally.groups.values()) > tally.cases / 2, "the gap is rare"


def test_without_a_ledger_both_are_reported() -> None:
    ratios = sorted(worst(searched(subject("STEP", "state_lost"), {})).values())
    assert ratios[0] < KNOWN and ratios[-1] > 10 * ratios[0], ratios


def test_a_declared_rounding_widens_the_bound_and_is_told_once() -> None:
    (words,) = roundings("STEP")
    assert searched(subject("", "rounds_its_state"), {}, 60).failures
    tally = searched(subject("", "rounds_its_state", words), {}, 60)
    assert not tally.failures and set(tally.gaps) == {"out", "state"}
    cases, ratio, line = tally.gaps["state"]
    assert cases > 5 and ratio > 1.0 and '"pair":"gated_delta_rule_update"' in line
    assert searched(subject("", "loses_its_state", words), {}, 60).failures


def roundings(side: str) -> list[str]:
    truth = properties.pairs()[PAIRS[side]].truth
    assert isinstance(truth, Within)
    return list(truth.roundings)
