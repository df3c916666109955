"""Hypothesis draws cases, `check` tries them, failures are shrunk: the one module of the engine that imports Hypothesis."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from kernelpair.candidate import Candidate
from kernelpair.case import REJECTS, Case, to_line
from kernelpair.check import Journal, check
from kernelpair.pair import Pair
from kernelpair.run import Runner
from kernelpair.verdict import Failure, Verdict

ROUND = 500  # cases that one Hypothesis run draws; a long run is many rounds, so that its memory stays small
SHRINK_SECONDS = 20.0  # budget for making one run's failures small
VACUOUS = 0.1  # median bound over output size from which a bound alone proves too little
# How often which trial is drawn. A value trial is one call; the others make two or three, or find an error instead.
TRIALS = ("value",) * 4 + ("repeat", "threads", "poison") + ("relation",) * 3 + ("rejects",) * 2


class Caught(Exception):
    """A case failed. One subclass a kind, so that Hypothesis keeps failures of different kinds apart."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__("; ".join(failure.detail for failure in verdict.failures))


_caught: dict[str, type[Caught]] = {}


def caught(verdict: Verdict) -> Caught:
    """The exception for a failing verdict; its class is that of the first failure's kind."""
    kind = verdict.failures[0].kind
    if kind not in _caught:
        _caught[kind] = type(kind, (Caught,), {"__module__": "kernelpair"})
    return _caught[kind](verdict)


@dataclass
class Tally:
    """What a run has seen so far."""

    cases: int = 0
    calls: int = 0
    seconds: float = 0.0
    failures: dict[str, Verdict] = field(default_factory=dict)
    """Kind -> the smallest failing case."""
    trials: Counter[str] = field(default_factory=Counter)
    edges: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    """Output -> largest |error| / bound."""
    looseness: dict[str, list[float]] = field(default_factory=dict)
    sharp: int = 0
    vacuous: list[Failure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures and not self.vacuous

    def add(self, pair: Pair, verdict: Verdict) -> None:
        """Count a verdict."""
        case = verdict.case
        self.cases += 1
        self.calls += verdict.calls
        self.trials[case.trial] += 1
        self.edges.update(name for name, holds in pair.edges.items() if holds(case))
        self.sharp += pair.sharp is not None and verdict.calls > 0 and pair.sharp(case)
        for name, tightness in verdict.tightness.items():
            self.largest[name] = max(self.largest.get(name, 0.0), tightness.largest)
            self.looseness.setdefault(name, []).append(tightness.looseness)

    def judge_bounds(self, pair: Pair) -> None:
        """Fail the pair for an output whose bound is loose over the run while no sharper check stood beside it."""
        for name, samples in self.looseness.items():
            typical = median(samples)
            if len(samples) >= 20 and not typical <= VACUOUS and not self.sharp:
                detail = f"median bound / output size is {typical:.2g} over {len(samples)} cases, and no sharper check ran"
                self.vacuous.append(Failure("vacuous", name, detail))


def trials(pair: Pair, relation: str | None = None) -> Any:
    """A strategy of the pair's cases with their trial drawn, or all with one relation."""
    names = _trial_names(pair)

    @st.composite
    def draw_trial(draw: st.DrawFn) -> Case:
        case: Case = draw(pair.cases)
        if relation is not None:
            return replace(case, trial=relation)
        # Scattered, because Hypothesis repeats small and recent numbers: each trial gets its share, and 0 is `value`.
        drawn = draw(st.integers(0, 2**16 - 1), label="trial") * 40503 % 2**16
        return replace(case, trial=names[drawn * len(names) >> 16])

    return draw_trial()


def _trial_names(pair: Pair) -> list[str]:
    """Trials by weight, `value` first: as many entries for a group as TRIALS gives it, shared out among its members."""
    members = {"relation": sorted(pair.relations), "rejects": [REJECTS + name for name in pair.bad]}
    share = max(len(pair.relations), len(pair.bad), 1)
    names: list[str] = []
    for group in TRIALS:
        several = members.get(group, [group])
        names += [several[i * len(several) // share] for i in range(share)] if several else []
    return names


def strategy_for(pair: Pair, candidate: Candidate, relation: str | None = None) -> Any:
    """Cases within the candidate's budget of work."""
    drawn = trials(pair, relation)
    return drawn.filter(pair.emulated) if candidate.name == "amx_emulated" else drawn


class Drive:
    """One pair and candidate on trial: draws, checks, shrinks, counts."""

    def __init__(
        self,
        pair: Pair,
        candidate: Candidate,
        runner: Runner,
        *,
        journal: Journal | None = None,
        progress: Callable[[Tally], None] = lambda tally: None,
        stopped: Callable[[], bool] = lambda: False,
        relation: str | None = None,
    ) -> None:
        self.pair, self.candidate, self.runner = pair, candidate, runner
        self.tally = Tally()
        self.journal = journal
        self.progress = progress
        self.stopped = stopped
        self.strategy = strategy_for(pair, candidate, relation)
        self._started = time.monotonic()
        self._deadline: float | None = None
        self._shrink_until = 0.0
        self._failing: dict[str, Verdict] = {}

    def replay(self, cases: Sequence[Case]) -> None:
        """Try saved cases first, one by one; a failing one is kept as it is."""
        for case in cases:
            verdict = self._verdict(case)
            if not verdict.passed:
                self.tally.failures.setdefault(verdict.failures[0].kind, verdict)

    def run(self, examples: int | None, seconds: float | None, seed: int, database: Path | None) -> Tally:
        """Draw until `examples` cases or `seconds` are used up, a failure is found and shrunk, or the run is stopped.

        With neither limit the run goes on until it is stopped.
        """
        self.runner.start()
        self._started = time.monotonic()
        self._deadline = None if seconds is None else self._started + seconds
        store = DirectoryBasedExampleDatabase(database) if database is not None else None
        done = 0
        while (examples is None or done < examples) and not self._over() and self.tally.passed:
            size = ROUND if examples is None else min(ROUND, examples - done)
            self._round(size, seed + done, store if done == 0 else None)
            done += size
        self.tally.seconds = time.monotonic() - self._started
        self.tally.judge_bounds(self.pair)
        self.progress(self.tally)
        return self.tally

    def _round(self, size: int, seed: int, store: ExampleDatabase | None) -> None:
        @settings(
            max_examples=size,
            database=store,
            deadline=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
        )
        @hypothesis.seed(seed)  # inside of the settings: outside it would switch the database off
        @hypothesis.given(self.strategy)
        def attempt(case: Case) -> None:
            self._attempt(case)

        inner: Any = attempt
        inner.hypothesis.inner_test._hypothesis_internal_add_digest = f"{self.pair.name}-{self.candidate.name}".encode()
        try:
            attempt()
        except (Caught, BaseExceptionGroup, hypothesis.errors.Flaky) as error:
            self._keep(error)

    def _attempt(self, case: Case) -> None:
        verdict = self._remembered_or_new(case)
        if verdict is not None and not verdict.passed:
            # The one place that raises: Hypothesis tells failures apart by the line that raised them.
            raise caught(verdict)

    def _remembered_or_new(self, case: Case) -> Verdict | None:
        """The verdict on a case. A failing case keeps its verdict, so that a flaky kernel does not confuse shrinking, and
        once the time for shrinking is over nothing new is tried."""
        line = to_line(self.pair.name, self.pair.version, case)
        if line in self._failing:
            return self._failing[line]
        if self._failing:
            if time.monotonic() > self._shrink_until:
                return None
        elif self._over():
            return None
        verdict = self._verdict(case)
        if not verdict.passed:
            if not self._failing:
                self._shrink_until = time.monotonic() + SHRINK_SECONDS
            self._failing[line] = verdict
        return verdict

    def _verdict(self, case: Case) -> Verdict:
        verdict = check(self.pair, self.candidate, case, self.runner, self.journal)
        self.tally.add(self.pair, verdict)
        self.tally.seconds = time.monotonic() - self._started
        self.progress(self.tally)
        return verdict

    def _keep(self, error: BaseException) -> None:
        """The shrunk failures: those that Hypothesis reports, or, where they came and went, the shortest that were seen."""
        reported = [leaf for leaf in _leaves(error) if isinstance(leaf, Caught)]
        verdicts = [leaf.verdict for leaf in reported] or sorted(self._failing.values(), key=lambda v: len(v.line))
        for verdict in verdicts:
            self.tally.failures.setdefault(verdict.failures[0].kind, verdict)
        others = [leaf for leaf in _leaves(error) if not isinstance(leaf, (Caught, hypothesis.errors.Flaky))]
        if others:
            raise others[0]

    def _over(self) -> bool:
        return self.stopped() or (self._deadline is not None and time.monotonic() > self._deadline)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for child in error.exceptions for leaf in _leaves(child)]
    return [error]



