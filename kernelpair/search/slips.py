"""Which usual slip a wrong kernel makes: it is judged again, by a reference that makes the slip too."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import rounded_once
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs, Outputs, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.search.allowance import Allowance

CASES = 8  # failing cases that are judged again at most,
LEAST = 4  # and at least, for one case may be right by many slips
MOST_OF_THEM = 0.75  # that a slip explains: others may fail for something else
SECONDS = 3.0  # that all slips of a pair may take, for each failure of a run
NEAR = 2.0**-14  # of an output's size, or a rounding: what is further off by the contract, and no further by a slip, is this slip
OF_VALUES = ("value", "nonfinite", "unwritten", "relation")  # kinds of failures that a slip in the arithmetic has
Judge = Callable[[Subject, Case], Verdict | None]
"""The verdict on a case, or None where the case cannot be tried."""


def slips(subject: Subject, failing: Sequence[Case], judge: Judge, stopped: Callable[[], bool]) -> str:
    """What the kernel does instead of what its contract says, if that is a slip that its pair names; empty if it is none."""
    allowance = Allowance(SECONDS)

    def over() -> bool:
        return stopped() or allowance.used_up()

    wrong, far = list[Case](), list[bool]()
    others = [replace(case, seed=seed) for case in failing[:1] for seed in range(CASES)]  # of the smallest, where few fail
    for case in (replace(case, trial="value") for case in (*failing, *others) if subject.pair.slips):
        if len(wrong) == CASES or over():
            break
        verdict = judge(subject, case) if case not in wrong else None
        if verdict is not None and any(failure.kind in OF_VALUES for failure in verdict.failures):
            wrong.append(case)
            far.append(not _passes(judge(_by(subject, subject.pair.reference, True), case)))
    best, most = "", 0
    for says, reference in subject.pair.slips.items() if len(wrong) >= LEAST else ():
        if over() or most == len(wrong):
            break
        by = {near: _by(subject, reference, near) for near in (False, True)}
        right = _right([(by[near], case) for case, near in zip(wrong, far)], judge)
        if right > most:
            best, most = f"computes as if {says}: so in {_of(right, len(wrong))} failing cases", right
    return best


def _by(subject: Subject, reference: Callable[..., Any], near: bool) -> Subject:
    """The same, judged by this reference, and by no choice that the contract leaves: what follows from one is the contract's. Nor
    is a bound as it should be that knows the contract alone, where rows see no key or a result is beyond its dtype: what lies
    near is right, if that is asked for."""
    truth = subject.pair.truth
    if isinstance(truth, Within):

        def settle(case: Case, inputs: Inputs, truth: Outputs, outputs: Outputs) -> Outputs:
            return {name: _met(value, outputs[name], near) for name, value in truth.items()}

        truth = replace(truth, settle=settle, settle_ours=None, aggregate=None if near else truth.aggregate)
    return replace(subject, pair=replace(subject.pair, reference=reference, truth=truth))


def _met(truth: Tensor, got: Tensor, near: bool) -> Tensor:
    """The truth, and the output itself where it is as near as this, or is the truth in its dtype. None of it is left open."""
    if not isinstance(got, Tensor) or got.shape != truth.shape or not truth.is_floating_point():
        return truth
    wide, sizes = got.to(torch.float64), truth[truth.isfinite()].abs()
    size = float(sizes.median()) if sizes.numel() else 0.0
    most = max(NEAR, torch.finfo(got.dtype).eps / 2) if near else 0.0
    met = ((wide - truth).abs() <= most * (size + truth.abs())) | (rounded_once(truth, got.dtype) == got)
    return torch.where(met, wide, torch.where(truth.isnan() & ~wide.isnan(), torch.inf, truth))


def _right(tries: Sequence[tuple[Subject, Case]], judge: Judge) -> int:
    """In how many cases the kernel is right by what judges it there; 0 where these are not most of them."""
    right = 0
    for tried, (subject, case) in enumerate(tries):
        right += _passes(judge(subject, case))
        if tried - right >= (1 - MOST_OF_THEM) * len(tries):
            return 0
    return right


def _passes(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.passed


def _of(some: int, whole: int) -> str:
    return f"each of {whole}" if some == whole else f"{some} of {whole}"
