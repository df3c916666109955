"""Failures by cause, so that after one defect the search goes on to the others of the same kernel."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import Failure, Verdict

FAR = 10.0  # times further off than a known failure: that is another defect, or another face of this one that must be seen
GROSS = 1e4  # bounds: beyond this a failure is as bad as any
MOST = 12  # groups of one kernel; beyond that it is not one defect after another, but a kernel with another contract
HANGING_SECONDS = 20.0  # to find what a call that does not come back hangs on
NOTHING = ("none", "")  # of a word: that there is no such thing
PLACING = ("seed", "poison", "guard")  # they say where and among what a call's numbers lie, seldom why it fails
Try = Callable[[Case], Verdict | None]
"""The verdict on a case, or None where the case cannot be tried (not buildable, or not supported)."""


@dataclass(frozen=True)
class Group:
    """All failures of one kind with one cause, under the smallest case that shows it."""

    kind: str
    tensor: str
    cause: frozenset[str]
    """Flags and edges of the case without which it passes."""
    fields: tuple[str, ...]
    """The fields of the case that make them."""
    verdict: Verdict
    limits: Mapping[tuple[str, str], float]
    """Kind and tensor -> the ratio of error and bound up to which a failure is this one."""

    @property
    def size(self) -> float:
        """The ratio of the smallest case."""
        own = [f.worst for f in self.verdict.failures if (f.kind, f.tensor) == (self.kind, self.tensor)]
        return max(own, default=math.inf)

    @property
    def label(self) -> str:
        """The name by which a ledger of known failures calls the group."""
        where = f" {self.tensor}" if self.tensor else ""
        return f"{self.kind}{where}: {', '.join(sorted(self.cause)) or 'any case'}"


@dataclass(frozen=True)
class Class:
    """What a failure has to stay while its case is made smaller: its kind, its tensor, and how far it is off at least."""

    kind: str
    tensor: str
    least: float

    @classmethod
    def of(cls, failure: Failure) -> "Class":
        return cls(failure.kind, failure.tensor, min(failure.worst, GROSS) / FAR)

    def is_of(self, failure: Failure) -> bool:
        return (failure.kind, failure.tensor) == (self.kind, self.tensor) and failure.worst >= self.least

    def holds(self, verdict: Verdict) -> bool:
        return any(map(self.is_of, verdict.failures))


def features(pair: Pair, case: Case) -> frozenset[str]:
    """Flags of the case and edges that hold, in words: what a cause is made of. Sizes count through the edges alone."""
    edges = {name for name, holds in pair.coverage.edges.items() if not name.startswith("dtype ") and holds(case)}
    return frozenset(edges.union(*(_words(name, value, default) for name, value, default in _values(case))))


def _words(name: str, value: Any, default: Any) -> set[str]:
    if name in PLACING or (name == "trial" and value == default):
        return set()
    if name == "layout":
        return {f"{argument} {kind}" for argument, kind in value.items()}
    if name == "int32":
        return {f"{argument} int32" for argument in value}
    if isinstance(value, bool):
        return {name if value else f"no {name}"}
    if isinstance(value, str):
        some = {_some(name)} if value not in NOTHING and default in NOTHING else set()
        return {f"{name} {value or 'none'}"} | some
    return {name} if isinstance(value, float) and value != default else set()


def _some(name: str) -> str:
    return f"{name} not none"


def _values(case: Case) -> Iterator[tuple[str, Any, Any]]:
    for spec in fields(case):
        default = spec.default if spec.default_factory is MISSING else spec.default_factory()
        yield spec.name, getattr(case, spec.name), default


def _plainer(case: Case) -> Iterator[Case]:
    """The case with one more field at its default; of layouts, with one less."""
    for name, value, default in _values(case):
        if isinstance(value, Mapping):
            yield from (replace(case, **{name: {k: v for k, v in value.items() if k != key}}) for key in value)  # type: ignore[arg-type]
        elif value != default and name not in ("seed", "dtype"):
            yield replace(case, **{name: default})


def others(case: Case, observed: Mapping[str, set[str]]) -> Iterator[tuple[str, list[Case]]]:
    """Field -> the cases that differ in it alone: a flag the other way, another word that was seen, a size at its default."""
    for name, value, default in _values(case):
        if name == "seed":
            continue
        if isinstance(value, bool):
            others: list[Any] = [not value]
        elif isinstance(value, str) and name != "trial":
            others = sorted(observed.get(name, set()) - {value})
        elif isinstance(value, Mapping):
            for key in value:
                yield f"{name}.{key}", [replace(case, **{name: {k: v for k, v in value.items() if k != key}})]  # type: ignore[arg-type]
            continue
        else:
            others = [default] if value != default else []
        yield name, [replace(case, **{name: other}) for other in others]


def lead(failures: Sequence[Failure]) -> Failure:
    """The failure that a verdict goes by: the first that is about as bad as the worst, but a wrong value before an element that
    happens to equal what it held."""
    least = max(min(failure.worst, GROSS) for failure in failures) / FAR
    first = next(failure for failure in failures if failure.worst >= least)
    wrong = [failure for failure in failures if failure.kind == "value" and failure.tensor == first.tensor]
    return wrong[0] if first.kind == "unwritten" and wrong else first


def _limits(first: Failure, verdicts: Sequence[Verdict], most: float | None) -> dict[tuple[str, str], float]:
    """Up to where failures are those of a group: ten times what was seen, or what is said. A failure beside the first belongs
    to it where it is about as far off; one that is much further off, or much less, is another's."""
    limits: dict[tuple[str, str], float] = {}
    about = min(first.worst, GROSS)
    for failure in (failure for verdict in verdicts for failure in verdict.failures):
        size, name = min(failure.worst, GROSS), (failure.kind, failure.tensor)
        if name == (first.kind, first.tensor) or (most is None and about / FAR <= size <= about * FAR):
            known = FAR * size if most is None else most
            limits[name] = math.inf if known >= GROSS else max(known, limits.get(name, 0.0))
    return limits


def _for_a_while(attempt: Try) -> Try:
    """The same for so many seconds, then no more: of what hangs each attempt is another wait."""
    until = time.monotonic() + HANGING_SECONDS
    return lambda case: attempt(case) if time.monotonic() < until else None


def group_of(
    pair: Pair, verdict: Verdict, attempt: Try, observed: Mapping[str, set[str]], first: Failure | None = None,
    most: float | None = None,
) -> Group:
    """The group of a failure, by its cause: each field is set to its default, and kept there if the case fails as before. Then
    each field is changed, and belongs to the cause if that ends the failure. `most` is the ratio up to which it is known."""
    first = first or lead(verdict.failures)
    wanted = Class.of(first)
    attempt = _for_a_while(attempt) if first.kind == "hang" else attempt
    drawn, again = verdict, True
    while again:
        again = False
        for case in _plainer(verdict.case):
            plain = attempt(case)
            if plain is not None and wanted.holds(plain):
                verdict, again = plain, True
                break
    here = features(pair, verdict.case)
    cause: set[str] = set()
    needed: list[str] = []
    for name, cases in others(verdict.case, observed):
        tried = [(case, found) for case, found in ((case, attempt(case)) for case in cases) if found is not None]
        passed = [case for case, found in tried if not wanted.holds(found)]
        if passed and len(passed) == len(tried):
            gone = [here - features(pair, case) for case in passed]
            cause |= gone[0].intersection(*gone[1:]) - {_some(name)}  # its word says more
            needed.append(name)
        elif any(_some(name) in here - features(pair, case) for case in passed):
            cause.add(_some(name))  # any of its words will do
            needed.append(name)
    limits = _limits(first, [drawn, verdict], most)
    return Group(first.kind, first.tensor, frozenset(cause), tuple(needed), verdict, limits)


def _is_set(case: Case, name: str) -> bool:
    """The field is not at its default."""
    field_name, _, key = name.partition(".")
    value, default = next((value, default) for known, value, default in _values(case) if known == field_name)
    return key in value if key else value != default


def _is_flag(case: Case, name: str) -> bool:
    """A field that can be changed without changing which sizes the case has."""
    field_name, _, key = name.partition(".")
    value = getattr(case, field_name)
    default = next(default for known, _, default in _values(case) if known == field_name)
    return bool(key) or isinstance(value, bool | str | float) or value is None or default is None or default in (0, ())


@dataclass
class Groups:
    """The groups of one kernel so far."""

    pair: Pair
    found: dict[str, Group] = field(default_factory=dict)
    """By label."""
    counts: dict[str, int] = field(default_factory=dict)
    """Label -> failing cases that it explains."""
    worst: dict[str, float] = field(default_factory=dict)
    """Label -> the largest ratio of error and bound among them."""
    observed: dict[str, set[str]] = field(default_factory=dict)
    """Field -> the words that drawn cases had there."""

    @property
    def room(self) -> bool:
        return len(self.found) < MOST

    def note(self, case: Case) -> None:
        """Remember which words the fields of a drawn case may hold."""
        for name, value, _ in _values(case):
            if isinstance(value, str) and name not in PLACING:
                self.observed.setdefault(name, set()).add(value)

    def add(self, group: Group, label: str = "") -> list[str] | None:
        """Take up a new group; None if it is a known one under another case. Returns the labels of those that it takes in: the
        same failure with a cause that says more than is needed. `label` is what a ledger calls it."""
        name = group.kind, group.tensor
        alike = {known_label: known for known_label, known in self.found.items() if name in known.limits}
        if any(known.cause <= group.cause and group.size <= known.limits[name] for known in alike.values()):
            return None
        wider = [label for label, known in alike.items() if group.cause < known.cause and known.size <= group.limits[name]]
        for known_label in wider:
            del self.found[known_label]
        label = label or self.label_of(group)
        self.found[label] = group
        self.counts[label] = 1 + sum(self.counts.pop(known_label, 0) for known_label in wider)
        self.worst[label] = max([group.size, *(self.worst.pop(known_label, 0.0) for known_label in wider)])
        return wider

    def label_of(self, group: Group) -> str:
        """The group's own, and where a known group has that, how many have it."""
        names = (f"{group.label}, far beyond{f' ({number})' if number > 1 else ''}" for number in range(1, MOST + 2))
        return next(name for name in (group.label, *names) if name not in self.found)

    def news(self, verdict: Verdict, attempt: Try) -> list[Failure]:
        """The failures of a verdict that no known group explains.

        A group explains a failure if the case has all of the group's cause, passes without it, and is about as far off. A
        cause in sizes cannot be taken away from another case; there the kind and the tensor decide.
        """
        here = features(self.pair, verdict.case)
        left = list(verdict.failures)
        for label, group in self.found.items():
            mine = [failure for failure in left if self._is_within(group, failure)]
            explained = self._explained(group, verdict, mine, here, attempt) if mine else []
            if explained:
                left = [failure for failure in left if failure not in explained]
                self.counts[label] += 1
                own = [f.worst for f in explained if (f.kind, f.tensor) == (group.kind, group.tensor)]
                self.worst[label] = max([self.worst[label], *own])
        return left

    def _is_within(self, group: Group, failure: Failure) -> bool:
        """No further off than the group is known to go. One of another kind or tensor may go with the same cause, if there is
        one and it is about as far off."""
        known = group.limits.get((failure.kind, failure.tensor))
        if known is not None:
            return failure.worst <= known
        least = min(group.size, GROSS) / FAR
        return bool(group.cause) and least <= failure.worst <= max(group.limits.values())

    def _explained(
        self, group: Group, verdict: Verdict, mine: list[Failure], here: frozenset[str], attempt: Try
    ) -> list[Failure]:
        """Those of the failures that hang on the group's cause."""
        gone = self._without_flag(group, verdict)
        if gone is None and not group.cause <= here:
            return []
        if gone is None and group.cause and all(_is_flag(verdict.case, name) for name in group.fields):
            gone = [case for name, others in others(verdict.case, self.observed) if name in group.fields for case in others]
        tried = [found for found in map(attempt, gone or ()) if found is not None]
        if tried:
            return [failure for failure in mine if not all(Class.of(failure).holds(found) for found in tried)]
        return [failure for failure in mine if (failure.kind, failure.tensor) in group.limits] if group.cause <= here else []

    def _without_flag(self, group: Group, verdict: Verdict) -> list[Case] | None:
        """Where the case fails alike and has all of the group's flags, the cases without the first of them: other edges of the
        group's case may only have made the flags count there."""
        known = group.verdict.case
        flags = [name for name in group.fields if _is_flag(known, name) and _is_set(known, name)]
        if not flags or not any((f.kind, f.tensor) == (group.kind, group.tensor) for f in verdict.failures):
            return None
        if not all(_is_flag(verdict.case, name) and _is_set(verdict.case, name) for name in flags):
            return None
        return [case for name, others in others(verdict.case, self.observed) if name == flags[0] for case in others]
