"""Failures by cause, so that after one defect the search goes on to the others of the same kernel."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import Failure, Verdict

MUCH_WORSE = 20.0  # times further off than a known failure of the same tensor: that is another defect
MOST = 12  # groups of one kernel; beyond that it is not one defect after another, but a kernel with another contract
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

    @property
    def label(self) -> str:
        """The name by which a ledger of known failures calls the group."""
        where = f" {self.tensor}" if self.tensor else ""
        return f"{self.kind}{where}: {', '.join(sorted(self.cause)) or 'any case'}"


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
        return {f"{name} {value or 'none'}"}
    return {name} if isinstance(value, float) and value != default else set()


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


def _others(case: Case, observed: Mapping[str, set[str]]) -> Iterator[tuple[str, list[Case]]]:
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


def lead(verdict: Verdict) -> Failure:
    """The failure that a verdict goes by: its first, but a wrong value before an element that happens to equal what it held."""
    first = verdict.failures[0]
    wrong = [failure for failure in verdict.failures if failure.kind == "value" and failure.tensor == first.tensor]
    return wrong[0] if first.kind == "unwritten" and wrong else first


def _alike(verdict: Verdict | None, kind: str, tensor: str) -> bool:
    return verdict is not None and any((f.kind, f.tensor) == (kind, tensor) for f in verdict.failures)


def group_of(pair: Pair, verdict: Verdict, attempt: Try, observed: Mapping[str, set[str]]) -> Group:
    """What the failure hangs on: each field is set to its default, and kept there where the case fails as before; then each is
    changed, and belongs to the cause where that ends the failure."""
    first = lead(verdict)
    kind, tensor = first.kind, first.tensor
    again = True
    while again:
        again = False
        for case in _plainer(verdict.case):
            plain = attempt(case)
            if plain is not None and _alike(plain, kind, tensor):
                verdict, again = plain, True
                break
    here = features(pair, verdict.case)
    cause: set[str] = set()
    needed: list[str] = []
    for name, cases in _others(verdict.case, observed):
        tried = [(case, found) for case, found in ((case, attempt(case)) for case in cases) if found is not None]
        if tried and not any(_alike(found, kind, tensor) for _, found in tried):
            gone = [here - features(pair, case) for case, _ in tried]
            cause |= gone[0].intersection(*gone[1:])
            needed.append(name)
    return Group(kind, tensor, frozenset(cause), tuple(needed), verdict)


def _is_set(case: Case, name: str) -> bool:
    """The field is not at its default."""
    field_name, _, key = name.partition(".")
    value, default = next((value, default) for known, value, default in _values(case) if known == field_name)
    return key in value if key else value != default


def _ratio(verdict: Verdict) -> float:
    """How far the first failure's worst element is off, in bounds; 1 where nothing is measured."""
    shown = lead(verdict).differences
    return 1.0 if not shown else shown[0].ratio if shown[0].ratio == shown[0].ratio else math.inf


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
    found: list[Group] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Label -> failing cases that it explains."""
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

    def add(self, group: Group) -> list[str] | None:
        """Take up a new group; None if it is a known one under another case. Returns the labels of those that it takes in: the
        same failure with a cause that says more than is needed."""
        alike = [known for known in self.found if (known.kind, known.tensor) == (group.kind, group.tensor)]
        if any(known.cause <= group.cause and _ratio(group.verdict) <= MUCH_WORSE * _ratio(known.verdict) for known in alike):
            return None
        wider = [
            known for known in alike
            if group.cause < known.cause and _ratio(known.verdict) <= MUCH_WORSE * _ratio(group.verdict)
        ]
        self.found = [known for known in self.found if known not in wider] + [group]
        self.counts[group.label] = 1 + sum(self.counts.pop(known.label, 0) for known in wider)
        return [known.label for known in wider]

    def explains(self, verdict: Verdict, attempt: Try) -> bool:
        """Is this failure one of a known group: it has all of the cause, and without the cause it passes.

        A cause in sizes cannot be taken away from another case; there the kind and the tensor decide.
        """
        here = features(self.pair, verdict.case)
        for group in self.found:
            if self._hangs_on_flags(group, verdict, attempt) or (
                group.cause <= here and self._is_it(group, verdict, attempt)
            ):
                self.counts[group.label] += 1
                return True
        return False

    def _hangs_on_flags(self, group: Group, verdict: Verdict, attempt: Try) -> bool:
        """Does the case fail alike, has all of the group's flags, and passes once the first of them is gone: other edges of the
        group's case may only have made the flags count there."""
        first, known = lead(verdict), group.verdict.case
        flags = [name for name in group.fields if _is_flag(known, name) and _is_set(known, name)]
        if (first.kind, first.tensor) != (group.kind, group.tensor) or not flags:
            return False
        if not all(_is_flag(verdict.case, name) and _is_set(verdict.case, name) for name in flags):
            return False
        cases = [case for name, others in _others(verdict.case, self.observed) if name == flags[0] for case in others]
        return any(found is not None and found.passed for found in map(attempt, cases))

    def _is_it(self, group: Group, verdict: Verdict, attempt: Try) -> bool:
        if group.cause and all(_is_flag(verdict.case, name) for name in group.fields):
            cases = [case for name, others in _others(verdict.case, self.observed) if name in group.fields for case in others]
            tried = [found for found in map(attempt, cases) if found is not None]
            if tried:
                return any(found.passed for found in tried)
        first = lead(verdict)
        return (first.kind, first.tensor) == (group.kind, group.tensor) and _ratio(verdict) <= MUCH_WORSE * _ratio(group.verdict)
