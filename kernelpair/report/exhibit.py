"""A failure made ready for the page: its case is run again, as it was found and at its smallest, and on every other candidate."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kernelpair.call.runner import HarnessError, Isolated
from kernelpair.contract.case import Case, CaseError
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import KINDS, Failure, PlaceTable, Verdict
from kernelpair.providers.bug_script import write_script
from kernelpair.report.lines import FailureReport, PairResult, shown
from kernelpair.report.plane import Plane
from kernelpair.report.recorder import Recorder, Strip
from kernelpair.suite import Resolve
from kernelpair.trial.check import check, read_case

MOST_SCRIPT = 24_000  # bytes of a script that is shown on the page; a longer one is written by its command
MOST_NAMED = 12  # wrong requests that the words name one by one
SLOW = "too large for this candidate"

@dataclass(frozen=True)
class Again:
    """How to run a case again."""

    resolve: Resolve
    preload: Sequence[str]
    candidates: Callable[[Pair], Iterable[tuple[str, str]]] = lambda pair: ()
    """All candidates of a pair, and of each that cannot run here the reason."""
    load: Callable[[str], str] = lambda candidate: ""
    """Candidate -> the lines by which a script loads its library; empty where there are none."""


@dataclass(frozen=True)
class Requests:
    """The lengths of a batch: of each request one number for each of the case's fields."""

    names: tuple[str, ...]
    lengths: tuple[tuple[int, ...], ...]
    faulty: frozenset[int]

    @property
    def says(self) -> str:
        """The batch in words."""
        many = len(self.lengths)
        wrong = sorted(self.faulty)
        says = f"{many} request{'s' if many != 1 else ''}, by {' and '.join(self.names)}"
        if wrong:
            says += f"; wrong: {', '.join(map(str, wrong[:MOST_NAMED]))}"
        return says if len(wrong) <= MOST_NAMED else f"{says} and {len(wrong) - MOST_NAMED} more"


@dataclass
class View:
    """One case as its call left it."""

    line: str
    case: Case
    failures: list[Failure]
    planes: list[Plane]
    strips: list[Strip]
    requests: Requests | None
    drawn: str
    """The pair's own drawing in text; empty if it has none."""
    table: PlaceTable | None


@dataclass(frozen=True)
class OtherCandidate:
    """The smallest case on another candidate."""

    candidate: str
    verdict: str
    says: str


@dataclass
class Exhibit:
    """One group of failures."""

    title: str
    pair: str
    candidate: str
    reports: list[FailureReport]
    small: View | None = None
    found: View | None = None
    elsewhere: list[OtherCandidate] = field(default_factory=list)
    taken_away: list[tuple[str, str, str]] = field(default_factory=list)
    """Field, what the found case had, what the smallest has."""
    script: str = ""
    note: str = ""
    """Why there is less to see than there should be."""

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The kinds of its failures and what they mean."""
        return [(kind, KINDS[kind]) for kind in dict.fromkeys(report.kind for report in self.reports)]

    @property
    def shared(self) -> list[str]:
        """What its failing cases have in common, and the slip that explains them."""
        return list(dict.fromkeys(line for report in self.reports for line in report.shared.splitlines()))

    @property
    def replay(self) -> str:
        return self.reports[0].replay

    @property
    def shrunk(self) -> int:
        return self.reports[0].shrunk


def exhibits(results: Iterable[PairResult], again: Again, most: int) -> tuple[list[Exhibit], int]:
    """Those of `most` groups: of each kernel the one with the shortest case, then of each the next; and how many there are."""
    groups: dict[tuple[str, str, str], list[FailureReport]] = {}
    for result in results:
        for report in result.failures:
            groups.setdefault((result.pair, result.candidate, report.case or report.kind), []).append(report)
    before: Counter[tuple[str, str]] = Counter()
    ranked = []
    for pair, candidate, case in sorted(groups, key=lambda key: len(key[2])):
        ranked.append((before[pair, candidate], pair, candidate, case))
        before[pair, candidate] += 1
    first = sorted(ranked, key=lambda group: group[0])[:most]
    return [exhibit(pair, candidate, groups[pair, candidate, case], again) for _, pair, candidate, case in first], len(groups)


def exhibit(pair: str, candidate: str, reports: list[FailureReport], again: Again) -> Exhibit:
    """Run the cases of one group of failures again. What cannot be run is told in its note."""
    first = reports[0]
    made = Exhibit(f"{pair}[{shown(candidate)}] {first.kind}", pair, candidate, reports)
    if not first.case:
        made.note = "This failure is one of the whole run: there is no case to show."
        return made
    try:
        subject = again.resolve(pair, candidate)
        made.small, verdict = _view(subject, first.case, again.preload)
        if verdict.passed:
            made.note = "It passed when it was run again for this page: the failure comes and goes."
        if first.found and first.found != first.case:
            made.found, _ = _view(subject, first.found, again.preload)
            made.taken_away = _differences(made.found.case, made.small.case)
        others = [(name, reason) for name, reason in again.candidates(subject.pair) if name != candidate]
        made.elsewhere = [_elsewhere(name, reason, pair, made.small.case, again) for name, reason in others]
        made.script = _script(subject, verdict, again.load(candidate))
    except (HarnessError, CaseError) as error:
        made.note = f"The case could not be run again: {error}"
    return made


def _view(subject: Subject, line: str, preload: Sequence[str]) -> tuple[View, Verdict]:
    pair = subject.pair
    _, case = read_case({pair.name: pair}, line)
    kept: list[Recorder] = []

    def keeping(*arguments: Any) -> Recorder:
        kept.append(Recorder(*arguments))
        return kept[-1]

    with Isolated(subject.candidate, preload=preload) as runner:
        verdict = check(subject, case, runner, session_type=keeping)
    recorder = kept[0]
    planes = sorted(recorder.planes.values(), key=lambda plane: -plane.wrong)
    drawn = pair.cases.picture(case) if pair.cases.picture is not None else ""
    view = View(line, case, verdict.failures, planes, recorder.strips, requests_of(case, planes), drawn, verdict.table)
    return view, verdict


def requests_of(case: Case, planes: Sequence[Plane] = ()) -> Requests | None:
    """The batch of a case, from its fields that hold a number for each request; None where it has no such field. A field that
    is empty by default names some of the requests instead.

    A tensor with a wrong element blames a request where its first dimension is the requests, or their tokens one after another.
    """
    usual = {spec.name: spec.default for spec in fields(case)}
    numbers = {name: getattr(case, name) for name in usual if usual[name] != () and _are_lengths(getattr(case, name))}
    if not numbers:
        return None
    many = len(next(iter(numbers.values())))
    numbers = {name: values for name, values in numbers.items() if len(values) == many}
    faulty: set[int] = set()
    for plane in planes:
        if plane.wrong and plane.sizes:
            faulty |= _blamed(plane, numbers, many)
    return Requests(tuple(numbers), tuple(zip(*map(_flat, numbers.values()))), frozenset(faulty))


def _are_lengths(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_is_length(each) for each in value)


def _is_length(value: object) -> bool:
    return type(value) is int or (isinstance(value, tuple) and bool(value) and all(type(each) is int for each in value))


def _flat(values: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sum(value) if isinstance(value, tuple) else value for value in values)


def _blamed(plane: Plane, numbers: dict[str, tuple[Any, ...]], many: int) -> set[int]:
    if plane.sizes[0] == many:
        return set(plane.firsts)
    for values in map(_flat, numbers.values()):
        if sum(values) == plane.sizes[0]:
            owners = [request for request, count in enumerate(values) for _ in range(count)]
            return {owners[row] for row in plane.firsts}
    return set()


def _differences(found: Case, small: Case) -> list[tuple[str, str, str]]:
    rows = []
    for spec in fields(found):
        before, after = getattr(found, spec.name), getattr(small, spec.name, None)
        if before != after:
            rows.append((spec.name, _short(before), _short(after)))
    return rows


def _short(value: Any) -> str:
    text = ", ".join(f"{key}: {kind}" for key, kind in value.items()) if isinstance(value, dict) else str(value)
    return (text if len(text) <= 90 else text[:88] + " …") or "none"


def _elsewhere(name: str, reason: str, pair: str, case: Case, again: Again) -> OtherCandidate:
    if reason:
        return OtherCandidate(shown(name), "skip", reason)
    subject = again.resolve(pair, name)
    if subject.unsupported(case):
        return OtherCandidate(shown(name), "skip", f"outside of the documented limits: {subject.unsupported(case)}")
    if subject.candidate.slow and not subject.pair.cases.small(case):
        return OtherCandidate(shown(name), "skip", SLOW)
    try:
        with Isolated(subject.candidate, preload=again.preload) as runner:
            verdict = check(subject, case, runner)
    except HarnessError as error:
        return OtherCandidate(shown(name), "skip", str(error))
    name = shown(name, subject.candidate.run_as)
    if verdict.failures:
        first = verdict.failures[0]
        return OtherCandidate(name, "fail", str(first))
    largest = max((tightness.largest for tightness in verdict.tightness.values()), default=None)
    return OtherCandidate(name, "pass", "" if largest is None else f"largest error / bound {largest:.3g}")


def _script(subject: Subject, verdict: Verdict, load: str) -> str:
    """The smallest case as a script that needs only torch and the library; empty where that cannot be written, or is long."""
    if not load or verdict.passed or any(failure.kind == "hang" for failure in verdict.failures):
        return ""  # writing it makes the call, and waits for it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bug.py"
        try:
            write_script(path, subject.pair, subject.candidate, verdict, load)
        except Exception:  # noqa: BLE001 - the page does without it; `replay --script` says why
            return ""
        text = path.read_text()
    return text if len(text) <= MOST_SCRIPT else ""
