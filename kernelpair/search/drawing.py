"""Which cases a run draws, and which trial each is put to."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.subject import WRONG_CALLS, Subject
from kernelpair.search.hypothesis_internals import draws_of_the_seed
from kernelpair.search.strategies import any_of, between

MODELS_EVERY = 50  # one case in so many has the sizes of a model (`Cases.models`),
LEAST_MODELS = 3  # and so many do at the start of a run that has room for them; Hypothesis makes the first a smallest one
LEAST_SERIES, LEAST_SWEEPS = 3, 2  # at the start of the same runs: long series of calls, and every value of a dtype
LEAST_OPENING = 3  # and cases of each relation that opens a run
OPENED_FROM = 30  # cases that a run must have more of than this to have room for all of those
SERIES = "series"  # a trial of a thousand calls: never drawn but at the start,
MOSTLY_SERIES = ("value", *[SERIES] * 15)  # where the smallest case is called once, as is one that fails in a single call
# How often which trial is drawn. A value trial is one call; the others make two or three, or find an error instead.
ONCE = ("repeat", "threads", "concurrent", "poison", "aftermath")
TRIALS = ("value",) * 4 + ONCE + ("relation",) * 3 + (WRONG_CALLS,) * 2 + ("fuzz", "neighbours")


def trials(
    subject: Subject, trial: str | None = None, models_every: int = MODELS_EVERY, names: Sequence[str] | None = None
) -> Any:
    """A strategy of cases within the candidate's budget of work, some of a model's sizes; their trial drawn, or all of one."""
    groups = any_of(*(_trial_groups(subject) if names is None else ((name,) for name in names)))
    is_model = between(0, models_every - 1)
    cases, slow = subject.pair.cases, subject.candidate.slow
    small = cases.strategy.filter(cases.small) if slow else cases.strategy
    models = cases.models(slow) if cases.models is not None else None

    @st.composite
    def draw_trial(draw: st.DrawFn) -> Case:
        model = draw(is_model, label="model") == models_every - 1
        case: Case = draw(models if models is not None and model else small)
        if trial is not None:
            return replace(case, trial=trial)
        return replace(case, trial=draw(any_of(*draw(groups, label="kind of trial")), label="trial"))

    return draw_trial()


def _trial_groups(subject: Subject) -> Iterator[tuple[str, ...]]:
    """The trials of each kind, a kind as often as TRIALS names it. Drawn in two small ranges: of one as long as all trials
    Hypothesis would prefer the ends, and whatever falls there."""
    members = {
        "relation": sorted(filter(subject.asked_for, subject.pair.relations)),
        WRONG_CALLS: [name for name in (WRONG_CALL + wrong for wrong in subject.pair.wrong_calls) if subject.asked_for(name)],
    }
    for group in TRIALS:
        several = members.get(group, [group] if subject.asked_for(group) else [])
        if several:
            yield tuple(several)


def openings(subject: Subject, trial: str | None) -> dict[str, tuple[int, Any]]:
    """Cases that a run begins with, because they would be drawn too seldom: name -> how many, and from which strategy."""
    cases = subject.pair.cases
    rounds: dict[str, tuple[int, Any]] = {}
    if cases.models is not None:
        rounds["models"] = LEAST_MODELS, trials(subject, trial, 1)
    if cases.sweeps is not None and trial in (None, "value"):
        rounds["sweeps"] = LEAST_SWEEPS, cases.sweeps
    if trial is None and subject.asked_for(SERIES):
        rounds[SERIES] = LEAST_SERIES, trials(subject, names=MOSTLY_SERIES)
    for name, relation in subject.pair.relations.items():
        if relation.opens and trial is None and subject.asked_for(name):
            rounds[name] = LEAST_OPENING, trials(subject, names=(name,)).filter(relation.applies)
    return rounds


def drawn_cases(strategy: Any, count: int, seed: int) -> list[Case]:
    """So many cases, which are drawn but not tried."""
    found: list[Case] = []

    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @hypothesis.seed(seed)
    @hypothesis.given(strategy)
    def note(case: Case) -> None:
        found.append(case)

    with draws_of_the_seed():
        note()
    return found
