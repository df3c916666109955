"""What the failing cases of a kernel share and the passing ones do not: other cases are drawn, tried and compared."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import Verdict
from kernelpair.search.allowance import Allowance
from kernelpair.search.coverage import sizes
from kernelpair.search.drawing import drawn_cases
from kernelpair.search.groups import Try, features, others

SAMPLE = 80  # cases that are drawn
SECONDS = 2.0  # that they and the variants of the smallest case may take, for each failure of a run
LEAST = 4  # failing cases from which something is said
MOST = 3  # conditions in a sentence
LUCK = 0.1  # a further one is said if no more than so many would tell as much of failing cases chosen by lot
NEARLY_ALL, TELLING = 0.8, 0.6  # failing cases that have a condition which not all have, and how many more than of the others
STEPS = (*range(5), 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129)  # of a size in a variant
BLOCKS = (2, 4, 8, 16, 32, 64, 128)  # whose multiples may pass or fail


@dataclass(frozen=True)
class Condition:
    """Something that holds for all failing cases."""

    says: str
    holds: Callable[[Case], bool]
    kind: Literal["word", "one of many", "range"] = "word"
    """`one of many`: there are so many for each number that one of them tells some cases from others by chance. A `range` from
    the least to the largest holds for any cases."""


def survey(
    pair: Pair, verdict: Verdict, strategy: Any, attempt: Try, fails: Callable[[Verdict], bool], seed: int,
    stopped: Callable[[], bool],
) -> tuple[str, Sequence[Case]]:
    """Try other cases, and say in one sentence what the failing ones share, empty if too few fail; and which fail, those first
    that take the least time."""
    allowance, took = Allowance(SECONDS), [0.0]
    failing, passing = [verdict.case], list[Case]()
    drawn = [replace(case, trial=verdict.case.trial) for case in drawn_cases(strategy, SAMPLE, seed)]
    for case in (*drawn, *_variants(pair, verdict.case, drawn)):
        if stopped() or allowance.used_up():
            break
        began = time.monotonic()
        tried = attempt(case) if case not in failing and case not in passing else None
        if tried is None or not tried.calls or tried.unsupported:
            continue
        if fails(tried):
            failing.append(case)
            took.append(time.monotonic() - began)
        elif tried.passed:  # what fails in another way says nothing
            passing.append(case)
    return shared(pair, failing, passing), [failing[at] for at in sorted(range(len(failing)), key=took.__getitem__)]


def _variants(pair: Pair, case: Case, drawn: Sequence[Case]) -> Iterator[Case]:
    """The case with one field changed: a size to others between those that are drawn, a flag, a layout or the dtype."""
    for _, changed in others(case, {"dtype": set(pair.signature.dtypes)}):
        yield from changed
    for name in (spec.name for spec in fields(case) if type(getattr(case, spec.name)) is int and spec.name != "seed"):
        values = [getattr(each, name) for each in drawn if type(getattr(each, name)) is int]
        yield from (replace(case, **{name: step}) for step in STEPS if values and min(values) <= step <= max(values))


def shared(pair: Pair, failing: Sequence[Case], passing: Sequence[Case]) -> str:
    """One sentence about the failing cases, by what tells them best from those that pass."""
    if len(failing) < LEAST:
        return ""
    if len(passing) < 2:  # a single one is not told from the others by anything
        return f"fails in {f'{len(failing)} of {len(failing) + 1}' if passing else f'each of {len(failing)}'} cases tried"
    known, chosen, left = list(_conditions(pair, failing, passing)), list[Condition](), list(passing)
    many = len(known)
    while known and left and len(chosen) < MOST:
        best = max(known, key=lambda condition: sum(not condition.holds(case) for case in left))
        ended = sum(not best.holds(case) for case in left)
        if ended < 2 and ended < len(left):  # one case apart is chance
            break
        if many * _by_lot(len(failing), len(left), ended) > LUCK:
            if chosen:
                break
            if best.kind != "word" and 2 * ended < len(left):
                known.remove(best)
                continue
        chosen.append(best)
        left = [case for case in left if best.holds(case)]
    loose = 4 * len(left) > len(passing) and all(condition.kind == "range" for condition in chosen)
    if loose and (mostly := _mostly(pair, failing, passing)):
        return mostly
    if not chosen:
        return f"fails in {len(failing)} of {len(failing) + len(passing)} cases tried, which nothing tells from the others"
    where = ", ".join(condition.says for condition in chosen)
    if not left:
        return f"fails for {where} ({len(failing)} cases tried), passes for all others ({len(passing)})"
    return (
        f"fails only for {where}, in {len(failing)} of {len(failing) + len(left)} such cases; "
        f"passes for all others ({len(passing) - len(left)})"
    )


def _mostly(pair: Pair, failing: Sequence[Case], passing: Sequence[Case]) -> str:
    """The same of a condition that nearly all failing cases have and few passing ones, as where one of two causes is enough."""
    best, most = "", 0.0
    for condition in _frequent(pair, failing):
        inside, passed = sum(map(condition.holds, failing)), sum(map(condition.holds, passing))
        tells = inside / len(failing) - passed / len(passing)
        if inside >= NEARLY_ALL * len(failing) and tells > max(most, TELLING):
            others = len(failing) + len(passing) - inside - passed
            best, most = (
                f"fails mostly for {condition.says}: in {inside} of {inside + passed} such cases, and in "
                f"{len(failing) - inside} of {others} others"
            ), tells
    return best


def _frequent(pair: Pair, failing: Sequence[Case]) -> Iterator[Condition]:
    """What some failing cases have."""
    for word in sorted(set.union(*(_words(pair, case) for case in failing))):
        yield Condition(word, lambda case, word=word: word in _words(pair, case))  # type: ignore[misc]
    for name in dict(_numbers(pair, failing[0])):
        for block in BLOCKS:
            yield _no_multiple(pair, name, block)
            yield _multiple(pair, name, block)


def _by_lot(failing: int, passing: int, without: int) -> float:
    """The probability that of all these cases those `without` a condition all are passing ones."""
    return math.comb(passing, without) / math.comb(failing + passing, without)


def _conditions(pair: Pair, failing: Sequence[Case], passing: Sequence[Case]) -> Iterator[Condition]:
    """Everything that all failing cases have, the plainest first: of equally good ones the first is chosen."""
    words = [_words(pair, case) for case in failing]
    for word in sorted(set.intersection(*words)):
        yield Condition(word, lambda case, word=word: word in _words(pair, case))  # type: ignore[misc]
    dtypes = sorted({case.dtype for case in failing})
    if len(dtypes) > 1:
        yield Condition(f"dtype {' or '.join(dtypes)}", lambda case: case.dtype in dtypes, "one of many")
    measured = [_numbers(pair, case) for case in failing]
    for name in set.intersection(*map(set, measured)):
        values = {numbers[name] for numbers in measured}
        seen = {numbers[name] for case in passing if name in (numbers := _numbers(pair, case))} | values
        yield from _ranges(pair, name, values, seen)
        yield from _multiples(pair, name, values)


def _ranges(pair: Pair, name: str, values: set[int], seen: set[int]) -> Iterator[Condition]:
    """A bound on one side, and those on both, which are chosen where they say more."""
    low, high = min(values), max(values)
    if low == high:
        yield Condition(f"{name} {low}", lambda case: _numbers(pair, case).get(name) == low, "one of many")
        return
    if low > min(seen):
        yield Condition(f"{name} of at least {low}", lambda case: _numbers(pair, case).get(name, low - 1) >= low, "range")
    if high < max(seen):
        yield Condition(f"{name} of at most {high}", lambda case: _numbers(pair, case).get(name, high + 1) <= high, "range")
    yield Condition(f"{name} of {low} to {high}", lambda case: low <= _numbers(pair, case).get(name, low - 1) <= high, "range")


def _multiples(pair: Pair, name: str, values: set[int]) -> Iterator[Condition]:
    for block in BLOCKS:
        if all(value % block for value in values):
            yield _no_multiple(pair, name, block)
        if not any(value % block for value in values):
            yield _multiple(pair, name, block)


def _no_multiple(pair: Pair, name: str, block: int) -> Condition:
    return Condition(f"{name} no multiple of {block}", lambda case: _numbers(pair, case).get(name, 0) % block != 0, "one of many")


def _multiple(pair: Pair, name: str, block: int) -> Condition:
    return Condition(f"{name} a multiple of {block}", lambda case: not _numbers(pair, case).get(name, 1) % block, "one of many")


def _words(pair: Pair, case: Case) -> set[str]:
    """Flags and edges, with two that hold for several dtypes and layouts."""
    found = set(features(pair, case)) | {f"{argument} not dense" for argument in case.layout}
    return found | ({f"elements of {getattr(torch, case.dtype).itemsize} bytes"} if pair.signature.dtypes else set())


def _numbers(pair: Pair, case: Case) -> Mapping[str, int]:
    return dict(sizes(case)) | {name: measured(case) for name, measured in pair.coverage.measures.items()}
