"""A suite of one kernel that is right, and of others that do not come back from a call."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Bench, BenchRow, Inputs
from kernelpair.suite import PlainSuite
from tests.kernels import good
from tests.selftest.toy import PAIR

FEW, MANY = "few rows", "many rows"
ROWS = {FEW: 4, MANY: 400}


def _given(rows: int) -> Inputs:
    x = torch.ones(rows, 8)
    return {"x": x, "slots": torch.arange(rows), "out": torch.zeros_like(x), "scale": 1.0}


def _beyond_few(x: Tensor, slots: Tensor, out: Tensor, scale: float, fall: Callable[[], object]) -> None:
    if len(x) > ROWS[FEW]:
        fall()
    good(x, slots, out, scale)


def faults(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _beyond_few(x, slots, out, scale, lambda: ctypes.string_at(0))


def traps(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _beyond_few(x, slots, out, scale, lambda: os.kill(os.getpid(), signal.SIGILL))


def leaves(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _beyond_few(x, slots, out, scale, lambda: os._exit(0))


def hangs(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _beyond_few(x, slots, out, scale, lambda: time.sleep(600))


CALLS: list[int] = []


def faults_again(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """In its second call."""
    CALLS.append(len(x))
    _beyond_few(x, slots, out, scale, lambda: CALLS.count(len(x)) > 1 and ctypes.string_at(0))


def _refuse() -> None:
    raise ValueError("slots: too many\nof them")


def raises(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    _beyond_few(x, slots, out, scale, _refuse)


FALLS = (faults, traps, leaves, hangs, faults_again, raises)
BENCH = Bench(
    rows=[
        BenchRow(FEW, lambda: _given(ROWS[FEW]), peers={"torch": lambda given: lambda: given["x"] * 2}),
        BenchRow(MANY, lambda: _given(ROWS[MANY])),
    ]
)
SUITE = PlainSuite(
    Path(__file__).parent,
    [replace(PAIR, name=f.__name__, bench=BENCH) for f in FALLS],
    {f.__name__: [Candidate("good", "tests.kernels:good"), Candidate("bad", f"{__name__}:{f.__name__}")] for f in FALLS},
)
