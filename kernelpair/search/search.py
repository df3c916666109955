"""Hypothesis draws cases, `check` tries them, failures are shrunk."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import SkipTest

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase

from kernelpair.call.runner import HarnessError, Runner
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.search.caught import Caught, caught
from kernelpair.search.drawing import OPENED_FROM, openings, trials
from kernelpair.search.examples import FailingExamples
from kernelpair.search.groups import Class, Groups, group_of, lead
from kernelpair.search.hypothesis_internals import draws_of_the_seed
from kernelpair.search.shared import survey
from kernelpair.search.slips import slips
from kernelpair.search.tally import First, Shrinking, Tally
from kernelpair.trial.check import Journal, check
from kernelpair.trial.session import Session
from kernelpair.trial.truths import Truths

ROUND = 2000  # cases that one Hypothesis run draws; a long run is many rounds, so that its memory stays small
SHRINK_SECONDS = 20.0  # budget for making one run's failures small
BRIEF_SECONDS = 1.0  # a run of less begins with one case of each opening, and not with the smallest, the first of any round
LEAST_ATTEMPTS = 50  # cases drawn, if none of them is supported, before the time may end a run that has tried nothing
PATIENCE_SECONDS = 180.0  # the same while the case has more of something than a shrunk one may (`Cases.sizes`)
REUSE = (Phase.reuse, Phase.shrink)
PHASES = (Phase.reuse, Phase.generate, Phase.target, Phase.shrink)


class _Stop(KeyboardInterrupt):
    """Time is up. It is an interrupt because Hypothesis lets interrupts pass at once, and does not take the case for a
    failing one."""


class Search:
    """One subject on trial: draws, checks, shrinks, counts."""

    def __init__(
        self,
        subject: Subject,
        runner: Runner,
        *,
        journal: Journal | None = None,
        progress: Callable[[Tally], None] = lambda tally: None,
        stopped: Callable[[], bool] = lambda: False,
        trial: str | None = None,
        several: bool = False,
        explain: bool = False,
        shrink_seconds: float = SHRINK_SECONDS,
        session_type: type[Session] = Session,
        truths: Truths | None = None,
    ) -> None:
        """With `several` the search goes on after a failure, to other defects of the same kernel; with `explain` it tries
        further cases at its end, to say what the failing ones share. Who puts several candidates of a pair on trial gives the
        searches the same `truths`."""
        self.subject, self.pair, self.runner = subject, subject.pair, runner
        self.groups = Groups(self.pair) if several else None
        self.tally = Tally()
        self.journal = journal
        self.progress = progress
        self.stopped = stopped
        self.strategy, self.openings = trials(subject, trial), openings(subject, trial)
        self._shrink_seconds, self._session_type, self._explain = shrink_seconds, session_type, explain
        self._truths = truths
        self._started = time.monotonic()
        self._deadline: float | None = None
        self._shrink_until: float | None = None
        self._failing: dict[str, Verdict] = {}
        self._trails: dict[str, Shrinking] = {}
        self._answers: dict[str, list[Failure]] = {}
        self._made: Counter[str] = Counter()
        """How often each wrong call was made. One that fails counts once it is small: until then it comes first."""
        self._attempts = self._drawn = self._left_out = 0
        self._fault: HarnessError | None = None
        self._target: Class | None = None
        """In a search for several defects: what this round shrinks."""

    def replay(self, cases: Sequence[Case]) -> None:
        """Try saved cases first, one by one; a failing one is kept as it is."""
        self.runner.start()
        self._started = time.monotonic() - self.tally.seconds
        for case in cases:
            verdict = self._verdict(case)
            if not verdict.passed:
                self._take_up(verdict)

    def recall(self, known: Mapping[str, tuple[Case, float | None]]) -> None:
        """Try the cases of a ledger. While a case fails, its group is a known failure, up to the ratio of error and bound
        that the ledger may give. Whatever else fails in these cases is new."""
        assert self.groups is not None, "a ledger needs a search for several defects"
        for label, (case, most) in known.items():
            verdict = self._verdict(case)
            if verdict.passed:
                self.tally.mended.append(label)
                continue
            self.tally.known[label] = verdict
            meant = [f for f in verdict.failures if label.startswith((f"{f.kind} {f.tensor}:", f"{f.kind}:"))]
            first = meant[0] if meant else None
            self.groups.add(group_of(self.pair, verdict, self._plain_attempt, self.groups.observed, first, most), label)
            self._take_up(verdict)

    def run(self, examples: int | None, seconds: float | None, seed: int, database: Path | None, shared: str = "") -> Tally:
        """Draw until `examples` cases or `seconds` are used up, a failure is found and shrunk, or the run is stopped.

        With neither limit the run goes on until it is stopped. `database` is the folder of failing examples; the pair and the
        candidate have a folder of their own in it. `shared` is one of several machines: a folder, or redis://host:port.
        """
        self.runner.start()
        self._started = time.monotonic() - self.tally.seconds
        failing = FailingExamples(f"{self.pair.name}-{self.subject.candidate.name.replace('/', '_')}", database, shared)
        store = failing.of()
        self._deadline = None if seconds is None else time.monotonic() + seconds
        done = 0
        opens = bool(self.openings) and (examples is None or examples > OPENED_FROM)
        again = Phase.reuse in settings().phases
        if opens and again and failing.may_be_there():
            self._round(1, seed, store, self.strategy, REUSE)
            done, self._shrink_until, self._target = self._drawn, None, None
        brief = seconds is not None and seconds < BRIEF_SECONDS
        for part, (count, strategy) in self.openings.items():
            failed = failing.may_be_there(f"-{part}")
            if self._searching() and not self._over() and (opens or (again and failed)):
                self._left_out = int(opens and brief and not failed)
                self._round(2 if brief else count, seed, failing.of(f"-{part}"), strategy, PHASES if opens else REUSE)
                done, self._shrink_until, self._target, self._left_out = self._drawn, None, None, 0
        begun = done
        while (examples is None or done < examples) and not self._over() and self._searching():
            size = ROUND if examples is None else min(ROUND, examples - done)
            drawn, groups = self._drawn, len(self.tally.failures)
            was_cut = self._round(size, seed + done, store if done == begun else None, self.strategy)
            least = 1 if len(self.tally.failures) > groups else 1 + size // 3  # a known failure again: not for ever
            done += max(self._drawn - drawn, least) if was_cut else size
            self._shrink_until = self._target = None
        self.tally.seconds = time.monotonic() - self._started
        if self.groups is not None:
            self.tally.groups = {label: (count, self.groups.worst[label]) for label, count in self.groups.counts.items()}
        self.tally.judge_bounds(self.pair)
        self.progress(self.tally)
        for name, verdict in self.tally.failures.items() if self._explain else ():
            if all(failure.kind != "hang" for failure in verdict.failures):  # each case more is another wait
                self.tally.shared[name] = self._shared(verdict, seed)
        return self.tally

    def _shared(self, verdict: Verdict, seed: int) -> str:
        """What cases share that fail as this one does: in any way, or, of several defects, in the same tensor and kind. On a
        second line the slip that explains them, if there is one."""
        names = {(failure.kind, failure.tensor) for failure in verdict.failures}

        def fails(tried: Verdict) -> bool:
            return bool(tried.failures if self.groups is None else names & {(f.kind, f.tensor) for f in tried.failures})

        says, failing = survey(self.pair, verdict, self.strategy, self._plain_attempt, fails, seed, self.stopped)
        return "\n".join(filter(None, (says, slips(self.subject, failing, self._judged, self.stopped))))

    def _round(
        self, size: int, seed: int, store: ExampleDatabase | None, strategy: Any, phases: Sequence[Phase] = PHASES
    ) -> bool:
        """Draw so many cases; True where a failure ended it before."""
        @settings(
            max_examples=size,
            database=store,
            deadline=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=True,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in phases if phase in settings().phases],  # a profile may leave some out
        )
        @hypothesis.seed(seed)  # inside of the settings: outside it would switch the database off
        @hypothesis.given(strategy)
        def attempt(case: Case) -> None:
            self._attempt(case)

        try:
            with draws_of_the_seed():
                attempt()
        except SkipTest:  # there was nothing to reuse
            return False
        except (KeyboardInterrupt, Caught, BaseExceptionGroup, hypothesis.errors.Flaky) as error:  # _Stop is one of the first
            self._keep(error)
            return True
        return False

    def _searching(self) -> bool:
        return self.tally.passed if self.groups is None else self.groups.room

    def _attempt(self, case: Case) -> None:
        if self._left_out:
            self._left_out -= 1
            return
        self._attempts += 1
        limit = self.subject.unsupported(case)
        if limit:
            self.tally.unsupported[limit] += 1
            case = self.subject.fit(case)
            if self.subject.unsupported(case):
                return
        self._drawn += self._shrink_until is None  # the way to a small case repeats itself
        if self.groups is not None:
            self.groups.note(case)
        verdict = self._remembered_or_new(case)
        if not verdict.passed and self._is_wanted(verdict):
            # The one place that raises: Hypothesis tells failures apart by the line that raised them.
            raise caught(verdict, self._kind(verdict))

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
            if not self._is_wanted(verdict):
                self._count_failed(verdict)
                return verdict
            self._begin_shrinking()
            self._failing[self._line(case)] = verdict
            self._note_unfinished(verdict)
            self._trails.setdefault(self._kind(verdict), Shrinking(verdict.line)).tried += 1
        return verdict

    def _note_unfinished(self, verdict: Verdict) -> None:
        """The smallest case of a failure that is being shrunk: all that an interrupt leaves of it."""
        known, kind = self.tally.unfinished, self._kind(verdict)
        if known is None or len(verdict.line) < len(known[1].line):
            self.tally.unfinished = kind if self.groups is None else f"{kind}: interrupted before it was shrunk", verdict

    def _kind(self, verdict: Verdict) -> str:
        """What is being shrunk goes by this kind."""
        return verdict.failures[0].kind if self._target is None else self._target.kind

    def _line(self, case: Case) -> str:
        return self.pair.line(case)

    def _is_wanted(self, verdict: Verdict) -> bool:
        """Is this failure to be shrunk: any, or, among several defects, one that no group explains.

        Once one is being shrunk, only what fails like it and about as far off: on the way to a small case lie others' failures.
        """
        if self.groups is None:
            return True
        if self._target is not None:
            return self._target.holds(verdict)
        news = self._news(verdict)
        if news:
            self._target = Class.of(lead(news))
        return bool(news)

    def _news(self, verdict: Verdict) -> list[Failure]:
        """The failures that belong to no known group; each verdict is asked once."""
        assert self.groups is not None
        if verdict.line not in self._answers:
            self._answers[verdict.line] = self.groups.news(verdict, self._plain_attempt)
        return self._answers[verdict.line]

    def _plain_attempt(self, case: Case) -> Verdict | None:
        """The verdict on a case that nobody drew; None where it cannot be tried."""
        return self._judged(self.subject, case)

    def _judged(self, subject: Subject, case: Case) -> Verdict | None:
        """The same, by what is known of the subject."""
        try:
            return None if subject.unsupported(case) else check(subject, case, self.runner, self.journal)
        except Exception:  # noqa: BLE001 - with a field at its default the case may be none of the contract
            return None

    def _begin_shrinking(self) -> None:
        if self._shrink_until is None:
            self._shrink_until = time.monotonic() + self._shrink_seconds

    def _verdict(self, case: Case) -> Verdict:
        verdict = check(self.subject, case, self.runner, self.journal, self._session_type, self._made, self._truths)
        self.tally.add(self.pair, verdict)
        self._made.update(verdict.wrong_calls)
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
        self._trails, self.tally.unfinished = {}, None
        faults = [leaf for leaf in leaves if not isinstance(leaf, (_Stop, Caught, hypothesis.errors.Flaky))]
        if faults:
            raise faults[0]
        if self._fault is not None and isinstance(error, _Stop):
            raise self._fault

    def _reduced(self, verdict: Verdict) -> Verdict:
        """Smaller still, by what the pair knows to leave out of a case, as long as the failure stays of its kind."""
        started, kind, target = time.monotonic(), verdict.failures[0].kind, self._target
        smaller = iter(self.pair.cases.simpler(verdict.case))
        while (case := next(smaller, None)) is not None and not self.stopped():
            large = any(measured(verdict.case) > most for most, measured in self.pair.cases.sizes.values())
            if time.monotonic() > started + (PATIENCE_SECONDS if large else SHRINK_SECONDS):
                break
            tried = self._plain_attempt(case)
            if tried is None or tried.passed:
                continue
            if target.holds(tried) if target is not None else tried.failures[0].kind == kind:
                verdict, smaller = tried, iter(self.pair.cases.simpler(case))
        return verdict

    def _count_failed(self, verdict: Verdict) -> None:
        """If a wrong call failed, it was made."""
        if verdict.case.trial.startswith(WRONG_CALL):
            self._made[verdict.case.trial.removeprefix(WRONG_CALL)] += 1

    def _take_up(self, verdict: Verdict) -> None:
        """Note a failure: of a kind, or of a group that was not known."""
        self._count_failed(verdict)
        trail = self._trails.get(self._kind(verdict))
        if self.groups is None:
            self.tally.failures.setdefault(verdict.failures[0].kind, verdict)
            if trail is not None:
                self.tally.shrinking.setdefault(verdict.failures[0].kind, trail)
        elif self.groups.room and (news := self.groups.news(verdict, self._plain_attempt)):
            meant = [failure for failure in news if self._target is not None and self._target.is_of(failure)]
            first = lead(meant or news)
            group = group_of(self.pair, verdict, self._plain_attempt, self.groups.observed, first)
            wider = self.groups.add(group)
            if wider is not None:
                label = next(label for label, known in self.groups.found.items() if known is group)
                self.tally.failures = {name: v for name, v in self.tally.failures.items() if name not in wider}
                self.tally.failures[label] = group.verdict
                if trail is not None:
                    self.tally.shrinking[label] = trail

    def _over(self) -> bool:
        until = self._deadline if self._shrink_until is None else self._shrink_until
        begun = self.tally.cases > 0 or self._attempts > LEAST_ATTEMPTS
        return self.stopped() or (until is not None and begun and time.monotonic() > until)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for child in error.exceptions for leaf in _leaves(child)]
    return [error]



