"""Hypothesis draws cases, `check` tries them, failures are shrunk: the one module of the engine that imports Hypothesis."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.internal.conjecture.engine import ConjectureRunner

from kernelpair.candidate import Candidate
from kernelpair.case import REJECTS, Case, to_line
from kernelpair.check import Journal, check
from kernelpair.groups import Groups, group_of
from kernelpair.pair import Pair
from kernelpair.run import HarnessError, Runner
from kernelpair.session import Session
from kernelpair.tally import First, Tally
from kernelpair.verdict import Verdict

ROUND = 2000  # cases that one Hypothesis run draws; a long run is many rounds, so that its memory stays small
SHRINK_SECONDS = 20.0  # budget for making one run's failures small
LEAST_ATTEMPTS = 50  # cases drawn, if none of them is supported, before the time may end a run that has tried nothing
PATIENCE_SECONDS = 180.0  # the same while the case has more of something than a shrunk one may (`Pair.sizes`)
# How often which trial is drawn. A value trial is one call; the others make two or three, or find an error instead.
TRIALS = ("value",) * 4 + ("repeat", "threads", "concurrent", "poison") + ("relation",) * 3 + ("rejects",) * 2 + ("fuzz",)


class Caught(Exception):
    """A case failed. One subclass a kind, so that Hypothesis keeps failures of different kinds apart."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__("; ".join(failure.detail for failure in verdict.failures))


class _Stop(KeyboardInterrupt):
    """Time is up. Hypothesis lets an interrupt pass at once, without taking the case for a failing one."""


_caught: dict[str, type[Caught]] = {}


def caught(verdict: Verdict) -> Caught:
    """The exception for a failing verdict; its class is that of the first failure's kind."""
    kind = verdict.failures[0].kind
    if kind not in _caught:
        _caught[kind] = type(kind, (Caught,), {"__module__": "kernelpair"})
    return _caught[kind](verdict)


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
        if group in pair.unasked:
            continue
        several = members.get(group, [group]) if group != "fuzz" or pair.fuzz is not None else []
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
        several: bool = False,
        shrink_seconds: float = SHRINK_SECONDS,
        session_type: type[Session] = Session,
    ) -> None:
        """With `several` the search goes on after a failure, to other defects of the same kernel."""
        self.pair, self.candidate, self.runner = pair, candidate, runner
        self.groups = Groups(pair) if several else None
        self.tally = Tally()
        self.journal = journal
        self.progress = progress
        self.stopped = stopped
        self.strategy = strategy_for(pair, candidate, relation)
        self._shrink_seconds, self._session_type = shrink_seconds, session_type
        self._started = time.monotonic()
        self._deadline: float | None = None
        self._shrink_until: float | None = None
        self._failing: dict[str, Verdict] = {}
        self._answers: dict[str, bool] = {}
        self._attempts = self._drawn = 0
        self._fault: HarnessError | None = None

    def replay(self, cases: Sequence[Case]) -> None:
        """Try saved cases first, one by one; a failing one is kept as it is."""
        for case in cases:
            verdict = self._verdict(case)
            if not verdict.passed:
                self._take_up(verdict)

    def recall(self, known: Mapping[str, Case]) -> None:
        """Try the cases of a ledger: their groups are known failures, as long as they fail."""
        assert self.groups is not None, "a ledger needs a search for several defects"
        for label, case in known.items():
            verdict = self._verdict(case)
            if verdict.passed:
                self.tally.mended.append(label)
            else:
                self.tally.known[label] = verdict
                self.groups.add(group_of(self.pair, verdict, self._plain_attempt, self.groups.observed))

    def run(self, examples: int | None, seconds: float | None, seed: int, database: Path | None) -> Tally:
        """Draw until `examples` cases or `seconds` are used up, a failure is found and shrunk, or the run is stopped.

        With neither limit the run goes on until it is stopped.
        """
        self.runner.start()
        self._started = time.monotonic()
        self._deadline = None if seconds is None else self._started + seconds
        store = DirectoryBasedExampleDatabase(database) if database is not None else None
        done = 0
        while (examples is None or done < examples) and not self._over() and self._searching():
            size = ROUND if examples is None else min(ROUND, examples - done)
            drawn, failed = self._drawn, len(self.tally.failures)
            self._round(size, seed + done, store if done == 0 else None)
            done += size if len(self.tally.failures) == failed else max(self._drawn - drawn, 1)
            self._shrink_until = None
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
            with _fresh_draws():
                attempt()
        except (_Stop, Caught, BaseExceptionGroup, hypothesis.errors.Flaky) as error:
            self._keep(error)

    def _searching(self) -> bool:
        return self.tally.passed if self.groups is None else self.groups.room

    def _attempt(self, case: Case) -> None:
        self._attempts += 1
        limit = self.pair.unsupported(case)
        if limit:
            self.tally.unsupported[limit] += 1
            case = self.pair.fit(case)
            if self.pair.unsupported(case):
                return
        self._drawn += 1
        if self.groups is not None:
            self.groups.note(case)
        verdict = self._remembered_or_new(case)
        if not verdict.passed and not self._explained(verdict):
            # The one place that raises: Hypothesis tells failures apart by the line that raised them.
            raise caught(verdict)

    def _remembered_or_new(self, case: Case) -> Verdict:
        """The verdict on a case. A failing case keeps its verdict, so that a flaky kernel does not confuse shrinking. Raises
        _Stop once the time, or after a failure the time for shrinking, is over."""
        if self._failing and self._line(case) in self._failing:
            return self._failing[self._line(case)]
        if self._over():
            raise _Stop
        try:
            verdict = self._verdict(case)
        except HarnessError as error:
            self._begin_shrinking()
            self._fault = error
            raise
        if not verdict.passed:
            if self._explained(verdict):
                return verdict
            self._begin_shrinking()
            self._failing[self._line(case)] = verdict
        return verdict

    def _line(self, case: Case) -> str:
        return to_line(self.pair.name, self.pair.version, case)

    def _explained(self, verdict: Verdict) -> bool:
        """Is this a failure of a group that is known; each is asked once."""
        if self.groups is None:
            return False
        if verdict.line not in self._answers:
            self._answers[verdict.line] = self.groups.explains(verdict, self._plain_attempt)
        return self._answers[verdict.line]

    def _plain_attempt(self, case: Case) -> Verdict | None:
        """The verdict on a case that nobody drew; None where it cannot be tried."""
        try:
            return None if self.pair.unsupported(case) else check(self.pair, self.candidate, case, self.runner, self.journal)
        except Exception:  # noqa: BLE001 - with a field at its default the case may be none of the contract
            return None

    def _begin_shrinking(self) -> None:
        if self._shrink_until is None:
            self._shrink_until = time.monotonic() + self._shrink_seconds

    def _verdict(self, case: Case) -> Verdict:
        try:
            verdict = check(self.pair, self.candidate, case, self.runner, self.journal, self._session_type)
        except Exception as error:
            says = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
            raise HarnessError(f"{says}; the case was {self._line(case)}") from error
        self.tally.add(self.pair, verdict)
        self.tally.seconds = time.monotonic() - self._started
        if self.tally.first is None and not verdict.passed:
            kind = verdict.failures[0].kind
            self.tally.first = First(kind, verdict.noticed_by, self.tally.cases, self.tally.seconds)
        self.progress(self.tally)
        return verdict

    def _keep(self, error: BaseException) -> None:
        """The shrunk failures: those that Hypothesis reports, or, where it had to stop, the shortest that were seen."""
        leaves = _leaves(error)
        reported = [leaf.verdict for leaf in leaves if isinstance(leaf, Caught)]
        seen = sorted(self._failing.values(), key=lambda verdict: len(verdict.line))
        if self.groups is not None:
            seen = [] if reported else seen[:1]  # the others are on the way to the reported one, or come up again
            self._failing, self._answers = {}, {}
        for verdict in [*reported, *seen]:
            if self.groups is not None or verdict.failures[0].kind not in self.tally.failures:
                self._take_up(self._reduced(verdict))
        faults = [leaf for leaf in leaves if not isinstance(leaf, (_Stop, Caught, hypothesis.errors.Flaky))]
        if faults:
            raise faults[0]
        if self._fault is not None and isinstance(error, _Stop):
            raise self._fault

    def _reduced(self, verdict: Verdict) -> Verdict:
        """Smaller still, by what the pair knows to leave out of a case, as long as the failure stays of its kind."""
        started, kind = time.monotonic(), verdict.failures[0].kind
        smaller = iter(self.pair.simpler(verdict.case))
        while (case := next(smaller, None)) is not None and not self.stopped():
            large = any(measured(verdict.case) > most for most, measured in self.pair.sizes.values())
            if time.monotonic() > started + (PATIENCE_SECONDS if large else SHRINK_SECONDS):
                break
            tried = self._plain_attempt(case)
            if tried is not None and not tried.passed and tried.failures[0].kind == kind:
                verdict, smaller = tried, iter(self.pair.simpler(case))
        return verdict

    def _take_up(self, verdict: Verdict) -> None:
        """Note a failure: of a kind, or of a group that was not known."""
        if self.groups is None:
            self.tally.failures.setdefault(verdict.failures[0].kind, verdict)
        elif self.groups.room and not self.groups.explains(verdict, self._plain_attempt):
            group = group_of(self.pair, verdict, self._plain_attempt, self.groups.observed)
            wider = self.groups.add(group)
            if wider is not None:
                self.tally.failures = {name: v for name, v in self.tally.failures.items() if name not in wider}
                self.tally.failures[group.label] = group.verdict

    def _over(self) -> bool:
        until = self._deadline if self._shrink_until is None else self._shrink_until
        begun = self.tally.cases > 0 or self._attempts > LEAST_ATTEMPTS
        return self.stopped() or (until is not None and begun and time.monotonic() > until)


def _nothing(self: ConjectureRunner, data: Any) -> None:
    """Instead of mutating what was drawn."""


@contextmanager
def _fresh_draws() -> Iterator[None]:
    """Without Hypothesis's mutations, which follow each drawn case with five that keep nearly all of its choices. They serve
    code that is looked at in one place; here half of a pair's wrong calls would not come up in 2,000 cases."""
    mutate = getattr(ConjectureRunner, "generate_mutations_from", None)
    if mutate is None:  # another version of Hypothesis
        yield
        return
    ConjectureRunner.generate_mutations_from = _nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConjectureRunner.generate_mutations_from = mutate  # type: ignore[method-assign]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for child in error.exceptions for leaf in _leaves(child)]
    return [error]



