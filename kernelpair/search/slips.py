"""Which usual slip a wrong kernel makes: it is judged again, by a reference that makes the slip too."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict

CASES = 8  # failing cases that are judged again at most,
LEAST = 4  # and at least, for one case may be right by many slips
MOST_OF_THEM = 0.75  # that a slip explains: others may fail for something else
SECONDS = 3.0  # that all slips of a pair may take, for each failure of a run
OF_VALUES = ("value", "nonfinite", "unwritten", "relation")  # kinds of failures that a slip in the arithmetic has
Judge = Callable[[Subject, Case], Verdict | None]
"""The verdict on a case, or None where the case cannot be tried."""


def slips(subject: Subject, failing: Sequence[Case], judge: Judge, stopped: Callable[[], bool]) -> str:
    """What the kernel does instead of what its contract says, if that is a slip that its pair names; empty if it is none."""
    until = time.monotonic() + SECONDS

    def over() -> bool:
        return stopped() or time.monotonic() > until

    wrong = list[Case]()
    others = [replace(case, seed=seed) for case in failing[:1] for seed in range(CASES)]  # of the smallest, where few fail
    for case in (replace(case, trial="value") for case in (*failing, *others) if subject.pair.slips):
        if len(wrong) == CASES or over():
            break
        verdict = judge(subject, case) if case not in wrong else None
        if verdict is not None and any(failure.kind in OF_VALUES for failure in verdict.failures):
            wrong.append(case)
    best, most = "", 0
    for says, reference in subject.pair.slips.items() if len(wrong) >= LEAST else ():
        if over():
            break
        right = _right(_slipping(subject, reference), wrong, judge)
        if right > most:
            best, most = f"computes as if {says}: so in {_of(right, len(wrong))} failing cases", right
    return best


def _slipping(subject: Subject, reference: Callable[..., Any]) -> Subject:
    """The same, judged by this reference, and by no choice that the contract leaves: what follows from one is the contract's."""
    truth = subject.pair.truth
    if isinstance(truth, Within):
        truth = replace(truth, settle=None, settle_ours=None)
    return replace(subject, pair=replace(subject.pair, reference=reference, truth=truth))


def _right(subject: Subject, cases: Sequence[Case], judge: Judge) -> int:
    """In how many cases the kernel is right by this reference; 0 where these are not most of them."""
    right = 0
    for tried, case in enumerate(cases):
        verdict = judge(subject, case)
        right += verdict is not None and verdict.passed
        if tried - right >= (1 - MOST_OF_THEM) * len(cases):
            return 0
    return right


def _of(some: int, whole: int) -> str:
    return f"each of {whole}" if some == whole else f"{some} of {whole}"
