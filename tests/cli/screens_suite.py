"""A suite for looking at: one kernel is right, one wrong from three rows on, one right and slow; a tier that no CPU has."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Pair
from kernelpair.report import last_line
from kernelpair.suite import PlainSuite
from tests.kernels import good
from tests.selftest.toy import PAIR

PAUSE = 0.02
last_line.CI_SECONDS = 0.3  # so that a short run has some lines of progress


@dataclass(frozen=True)
class Level:
    """An instruction set as a suite describes it."""

    name: str
    runnable: bool
    reason: str = ""


def slow(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    time.sleep(PAUSE)
    good(x, slots, out, scale)


KERNELS = {
    "scale_rows": "tests.kernels:good",
    "scale_tails": "tests.kernels:off_from_three_rows",
    "scale_slowly": "tests.cli.screens_suite:slow",
}


class ScreensSuite(PlainSuite):
    def tiers(self) -> Sequence[Level]:
        return [Level("plain", True), Level("wide", False, "this CPU lacks wide registers")]

    def candidates(self, pair: Pair) -> Sequence[Candidate]:
        return [Candidate(tier.name, KERNELS[pair.name]) for tier in self.tiers()]


SUITE = ScreensSuite(Path(__file__).parent, [replace(PAIR, name=name) for name in KERNELS])
