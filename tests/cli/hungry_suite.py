"""A suite whose bound wants more memory than a process that judges may take. None of it is touched."""

import os
from dataclasses import replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path

from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Bound, Inputs, Outputs, Within
from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR, ToyCase, bound

MOST = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def hungry(case: ToyCase, given: Inputs, truth: Outputs) -> Bound:
    mmap(-1, MOST * 5 // 8, flags=MAP_PRIVATE | MAP_ANONYMOUS).close()
    return bound(case, given, truth)


SUITE = PlainSuite(
    Path(__file__).parent,
    [replace(PAIR, name="hungry", truth=Within(hungry))],
    {"hungry": [Candidate("good", "tests.kernels:good")]},
)
