"""Driving a trial: it stops when told, tries saved cases first, makes failures small in bounded time and loses none."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from kernelpair.call.memory import Arena
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.runner import HarnessError, InProcess
from kernelpair.contract.pair import Bound, Inputs, Outputs, Pair, Relation, Stepwise, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import KINDS, Failure, Judged, Tightness
from kernelpair.search import search as searching
from kernelpair.search.drawing import LEAST_OPENING, LEAST_SERIES, OPENED_FROM
from kernelpair.search.jobs import Job, carry_out, next_job
from kernelpair.search.search import BRIEF_SECONDS, SHRINK_SECONDS, Search
from kernelpair.search.tally import Tally
from kernelpair.suite import SavedLine
from kernelpair.trial.check import Journal, read_case
from tests.kernels import kernel
from tests.selftest.toy import PAIR, ToyCase


class Notes(Journal):
    """A journal that keeps every line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


class SteppingRunner(InProcess):
    """A runner with a clock of its own: each call takes a second."""

    now = 0.0

    def run(self, request: CallRequest) -> Outcome:
        SteppingRunner.now += 1
        return super().run(request)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena.create(1 << 24)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[SteppingRunner]:
    """Replaces the time that the search sees."""
    SteppingRunner.now = 0.0
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: SteppingRunner.now))
    return SteppingRunner


def with_cases(**changes: Any) -> Pair:
    return replace(PAIR, cases=replace(PAIR.cases, **changes))


def driven(arena: Arena, name: str, pair: Pair = PAIR, runner: type[InProcess] = InProcess, **options: Any) -> Search:
    return Search(Subject(pair, kernel(name)), runner(kernel(name), arena), journal=Notes(), **options)


def lines(search: Search) -> list[str]:
    assert isinstance(search.journal, Notes)
    return search.journal.lines


def line_of(case: ToyCase) -> str:
    return PAIR.line(case)


# --- when it stops ---


@pytest.mark.parametrize("examples", [1, 7, 33])  # 33: more than one round
def test_as_many_cases_as_asked_for(arena: Arena, monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    monkeypatch.setattr(searching, "ROUND", 15)
    tally = driven(arena, "good").run(examples, None, 1, None)
    assert tally.passed and tally.cases == examples == sum(tally.trials.values())


def test_a_run_that_is_late_from_the_start_tries_one_case(arena: Arena) -> None:
    assert driven(arena, "good").run(None, 1e-9, 1, None).cases == 1


def test_no_more_seconds_than_asked_for(arena: Arena, clock: type[SteppingRunner]) -> None:
    tally = driven(arena, "good", runner=clock, trial="repeat").run(None, 30, 1, None)
    assert tally.passed and 30 <= tally.calls <= 32  # the last case takes two calls
    assert tally.seconds == tally.calls


def test_it_stops_when_told(arena: Arena) -> None:
    run = driven(arena, "good", stopped=lambda: run.tally.cases >= 12)
    assert run.run(None, None, 1, None).cases == 12


def test_progress_is_told_after_every_case(arena: Arena) -> None:
    seen: list[int] = []
    driven(arena, "good", progress=lambda tally: seen.append(tally.cases)).run(9, None, 1, None)
    assert seen == [*range(1, 10), 9]


# --- what it draws ---


def test_a_seed_draws_the_same_cases_again(arena: Arena) -> None:
    runs = [driven(arena, "good") for _ in range(3)]
    for run, seed in zip(runs, (5, 5, 6)):
        run.run(40, None, seed, None)
    assert lines(runs[0]) == lines(runs[1]) != lines(runs[2])


def test_every_trial_has_its_share(arena: Arena) -> None:
    pair = replace(PAIR, relations={"nothing": Relation(lambda case, session: None, "nothing at all")})
    tally = driven(arena, "good", pair).run(150, None, 1, None)
    built_in = {"repeat", "threads", "concurrent", "poison", "aftermath", "series"}
    assert set(tally.trials) == {"value", *built_in, "nothing", "wrong_call:slot_too_large"}
    assert tally.trials["value"] == max(tally.trials.values())


def test_one_trial_alone(arena: Arena) -> None:
    assert set(driven(arena, "good", trial="repeat").run(20, None, 1, None).trials) == {"repeat"}


def test_edges_are_counted(arena: Arena) -> None:
    assert driven(arena, "good").run(40, None, 1, None).edges["no rows"] > 0


@pytest.mark.parametrize("name", ["good", "off_by_an_eighth"])
def test_a_brief_run_begins_with_one_case_of_each_opening(arena: Arena, tmp_path: Path, name: str) -> None:
    """Which is not the smallest; and what failed in an earlier run comes first all the same."""
    large = with_cases(models=lambda slow: st.builds(ToyCase, rows=st.sampled_from([40, 41, 42]), width=st.just(9)))
    for _ in range(2):
        run = driven(arena, name, large, shrink_seconds=0.0)
        run.run(None, BRIEF_SECONDS / 2, 2, tmp_path)
        first = [read_case({large.name: large}, line)[1] for line in lines(run)[:2]]
        if name == "good":
            assert first[0].rows > 40 and first[1].trial == "series" and first[1] != ToyCase(trial="series")
        else:
            assert run.tally.failures and first[0].rows >= 40


@pytest.mark.parametrize("seconds", [None, BRIEF_SECONDS / 2])
def test_a_relation_that_opens_is_asked_at_once_where_it_says_something(arena: Arena, seconds: float | None) -> None:
    wide = Relation(lambda case, session: None, "of wide rows", lambda case: case.width > 3, opens=True)
    run = driven(arena, "good", pair := replace(PAIR, relations={"wide": wide}))
    run.run(None if seconds else OPENED_FROM + 10, seconds, 1, None)
    cases = [read_case({pair.name: pair}, line)[1] for line in lines(run)[: LEAST_SERIES + LEAST_OPENING]]
    opening = [case for case in cases if case.trial == "wide"]
    assert len(opening) >= (1 if seconds else LEAST_OPENING) and all(case.width > 3 for case in opening)


# --- whose turn it is ---


def test_a_process_goes_on_with_its_pair_and_else_takes_one_that_no_other_has() -> None:
    pending = [Job(pair, tier) for pair in "dcba" for tier in ("avx2", "scalar")]  # the last are due first
    assert pending[next_job(pending, "", {""})] == Job("a", "scalar")
    assert pending[next_job(pending, "c", {"a"})] == Job("c", "scalar")
    assert pending[next_job(pending, "", {"a", "b"})] == Job("c", "scalar")
    assert pending[next_job(pending[:2], "a", {"d"})] == Job("d", "scalar")


# --- saved cases ---


def test_saved_cases_come_first_and_in_order(arena: Arena) -> None:
    saved = [ToyCase(rows=9, width=2), ToyCase(rows=1, width=17)]
    run = driven(arena, "good")
    run.replay(saved)
    tally = run.run(5, None, 1, None)
    assert lines(run)[:2] == [line_of(case) for case in saved]
    assert tally.cases == 7


def test_the_time_of_saved_cases_counts(arena: Arena, clock: type[SteppingRunner]) -> None:
    search = driven(arena, "good", runner=clock, trial="repeat")
    search.replay([ToyCase(rows=rows) for rows in range(1, 6)])
    tally = search.run(5, None, 1, None)
    assert tally.cases == 10 and tally.seconds == tally.calls


def test_a_saved_case_that_fails_is_reported_as_it_is(arena: Arena) -> None:
    run = driven(arena, "off_from_three_rows")
    run.replay([ToyCase(rows=1), ToyCase(rows=9, width=2), ToyCase(rows=8)])
    tally = run.run(50, None, 1, None)
    assert {kind: verdict.case for kind, verdict in tally.failures.items()} == {"value": ToyCase(rows=9, width=2)}
    assert tally.cases == 3  # nothing is drawn while a saved case fails


def test_a_job_tries_its_corpus_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job("toy", "toy", examples=3, seed=1, corpus=(SavedLine(line_of(ToyCase(rows=20, width=20))),))
    ended = carry_out(job, lambda pair, name: Subject(PAIR, kernel("good")), (), True, lambda tally: None)
    assert not ended.error and ended.tally.passed and ended.tally.cases == 4


def test_a_job_with_a_corpus_of_another_version_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job("toy", "toy", examples=3, corpus=(SavedLine('{"pair":"toy","v":0}', "corpus/toy.jsonl:3"),))
    ended = carry_out(job, lambda pair, name: Subject(PAIR, kernel("good")), (), True, lambda tally: None)
    assert ended.error.startswith("CaseError: corpus/toy.jsonl:3: the case of toy has schema version 0")


# --- the example database ---


def test_a_failure_is_tried_first_in_the_next_run(arena: Arena, tmp_path: Path) -> None:
    first = driven(arena, "off_from_three_rows")
    (failing,) = first.run(200, None, 1, tmp_path).failures.values()
    second = driven(arena, "off_from_three_rows")
    assert not second.run(200, None, 2, tmp_path).passed
    assert lines(second)[0] == failing.line
    mended = driven(arena, "good")
    assert mended.run(20, None, 3, tmp_path).passed
    assert lines(mended)[0] == failing.line


def test_another_candidate_has_other_examples(arena: Arena, tmp_path: Path) -> None:
    first = driven(arena, "off_from_three_rows")
    (failing,) = first.run(200, None, 1, tmp_path).failures.values()
    other = Search(Subject(PAIR, replace(kernel("good"), name="other")), InProcess(kernel("good"), arena), journal=Notes())
    other.run(20, None, 2, tmp_path)
    assert lines(other)[0] != failing.line


# --- failures ---


def test_a_failure_is_made_small(arena: Arena) -> None:
    (verdict,) = driven(arena, "off_from_three_rows").run(200, None, 1, None).failures.values()
    assert verdict.case == ToyCase(rows=3)
    assert verdict.failures[0].kind == "value"


def test_a_pair_may_know_how_to_make_it_smaller(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Hypothesis could not leave out in its time, the pair's own smaller cases do, and never beyond what still fails."""
    fewer = with_cases(simpler=lambda case: [replace(case, rows=case.rows - n) for n in (2, 1) if case.rows > n])
    big = Search(Subject(fewer, kernel("off_from_three_rows")), InProcess(kernel("off_from_three_rows"), arena))
    verdict = big._plain_attempt(ToyCase(rows=20, width=2))
    assert verdict is not None and not verdict.passed
    assert big._reduced(verdict).case.rows == 3
    monkeypatch.setattr(searching, "SHRINK_SECONDS", -1.0)
    assert big._reduced(verdict).case.rows == 20  # it has a budget


def test_a_case_that_is_too_large_is_made_smaller_for_longer(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SHRINK_SECONDS", -1.0)
    fewer = with_cases(simpler=lambda case: [replace(case, rows=case.rows - 1)] if case.rows > 1 else [])
    measured = replace(fewer, cases=replace(fewer.cases, sizes={"rows": (4, lambda case: case.rows)}))
    for pair, rows in ((fewer, 9), (measured, 4)):
        trial = driven(arena, "off_from_three_rows", pair)
        large = trial._plain_attempt(ToyCase(rows=9))
        assert large is not None and not large.passed
        assert trial._reduced(large).case.rows == rows


def test_a_pair_may_judge_its_runs_itself(arena: Arena) -> None:
    says = Failure("relation", "out", "as the pair sees it")
    tight = {"out": Tightness(0.5, 0.01)}
    strict = replace(PAIR, truth=Stepwise(lambda case, given, outputs: Judged([says] if case.rows > 2 else [], tight)))
    tally = driven(arena, "good", strict).run(200, None, 1, None)
    assert set(tally.failures) == {"relation"}
    assert tally.failures["relation"].failures == [says]
    assert tally.failures["relation"].case.rows == 3
    blind = replace(PAIR, truth=Stepwise(lambda case, given, outputs: Judged([], {})))
    tally = driven(arena, "off_by_an_eighth", blind).run(200, None, 1, None)
    assert set(tally.failures) == {"untouched"}  # values are the pair's to compare; memory is judged as ever


def test_several_kinds_are_all_reported(arena: Arena) -> None:
    tally = driven(arena, "two_faults").run(200, None, 1, None)
    assert {kind: (verdict.case.rows, verdict.case.width) for kind, verdict in tally.failures.items()} == {
        "value": (3, 1),
        "nonfinite": (3, 4),
    }


def test_making_it_small_has_a_budget(arena: Arena, clock: type[SteppingRunner]) -> None:
    run = driven(arena, "off_from_three_rows", runner=clock)
    failed_at: list[float] = []
    verdict_of = run._verdict

    def watched(case: Any) -> Any:
        verdict = verdict_of(case)
        failed_at.extend([SteppingRunner.now] if not verdict.passed else [])
        return verdict

    run._verdict = watched  # type: ignore[method-assign]
    tally = run.run(200, None, 1, None)
    assert not tally.passed
    assert SteppingRunner.now <= failed_at[0] + SHRINK_SECONDS + 3  # the last case may take several calls


def test_a_kernel_that_fails_now_and_then_is_reported(arena: Arena) -> None:
    tally = driven(arena, "fails_now_and_then").run(200, None, 1, None)
    assert tally.failures and set(tally.failures) <= {"value", "nondeterministic"}


def test_a_fault_of_the_pair_is_none_of_the_candidate(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reference(x: torch.Tensor, slots: torch.Tensor, out: torch.Tensor, scale: float) -> None:
        if len(x) > 2:
            raise ZeroDivisionError("a mistake in the reference")
        PAIR.reference(x, slots, out, scale)

    monkeypatch.chdir(tmp_path)
    pair = replace(PAIR, reference=reference, wrong_calls={})
    ended = carry_out(
        Job("toy", "toy", examples=200, seed=1), lambda *names: Subject(pair, kernel("good")), (), True, lambda tally: None
    )
    assert ended.error.startswith("ZeroDivisionError") and ended.error.endswith(line_of(ToyCase(rows=3)))  # shrunk
    assert not list(Path(".kernelpair").iterdir())


def test_a_fault_of_the_pair_has_the_same_budget(arena: Arena, clock: type[SteppingRunner]) -> None:
    def inputs(case: ToyCase) -> Inputs:
        SteppingRunner.now += 1
        if case.rows > 2:
            raise ZeroDivisionError
        return PAIR.cases.inputs(case)

    run = driven(arena, "good", with_cases(inputs=inputs), runner=clock)
    with pytest.raises(HarnessError, match="ZeroDivisionError"):
        run.run(200, None, 1, None)
    assert SteppingRunner.now < 200


# --- bounds that prove nothing ---


def loose(case: ToyCase, given: Inputs, truth: Outputs) -> Bound:
    return {"out": truth["out"].abs() + 1}


def test_a_loose_bound_fails_the_pair(arena: Arena) -> None:
    tally = driven(arena, "good", replace(PAIR, truth=Within(loose))).run(100, None, 1, None)
    assert not tally.failures and not tally.passed
    assert [(failure.kind, failure.tensor) for failure in tally.vacuous] == [("vacuous", "out")]


def test_a_loose_bound_beside_sharper_cases_is_enough(arena: Arena) -> None:
    pair = replace(PAIR, truth=Within(loose, sharp=lambda case: case.width == 1))
    assert driven(arena, "good", pair).run(100, None, 1, None).passed


def test_a_tight_bound_stands_alone(arena: Arena) -> None:
    tally = driven(arena, "good").run(100, None, 1, None)
    assert tally.passed and 0 <= tally.largest["out"] <= 1


def test_a_tally_speaks_of_known_kinds_only() -> None:
    assert Tally().passed and set(KINDS) >= {"value", "crash", "hang", "vacuous"}


@pytest.mark.parametrize(("loose", "vacuous"), [(1, False), (30, True)])
def test_a_bound_that_is_no_number_counts_as_a_loose_one(loose: int, vacuous: bool) -> None:
    """Wherever it stands among the others: sorted as it is, a single NaN may come to be the median."""
    tally = Tally(looseness={"out": [1e-6] * 12 + [math.nan] * loose + [1e-6] * 12})
    tally.judge_bounds(PAIR)
    assert bool(tally.vacuous) == vacuous


@pytest.mark.parametrize("several", [False, True])
def test_a_failure_that_an_interrupt_meets_while_it_is_made_small_is_told(
    several: bool, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Search, verdict: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_reduced", interrupted)
    subject = Subject(PAIR, kernel("off_from_three_rows"))
    with InProcess(subject.candidate, arena=arena) as runner:
        search = Search(subject, runner, several=several)
        with pytest.raises(KeyboardInterrupt):
            search.run(200, None, 1, None)
    assert search.tally.passed
    search.tally.settle()
    (name, verdict), = search.tally.failures.items()
    assert verdict.failures and ("interrupted" in name) is several and search.tally.unfinished is None


def test_a_failure_that_was_made_small_is_told_once(arena: Arena) -> None:
    subject = Subject(PAIR, kernel("off_from_three_rows"))
    with InProcess(subject.candidate, arena=arena) as runner:
        tally = Search(subject, runner).run(200, None, 1, None)
    found = dict(tally.failures)
    tally.settle()
    assert found and tally.failures == found
