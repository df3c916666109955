"""A suite with a kernel that ends its process, which others are asked in too, and one that does not come back."""

from dataclasses import replace
from pathlib import Path

from kernelpair.contract.candidate import Candidate
from kernelpair.suite import PlainSuite
from tests.selftest.toy import PAIR

KERNELS = {
    "first": "tests.kernels:good",
    "deadly": "tests.kernels:segfaults",
    "last": "tests.kernels:good",
    "slow": "tests.kernels:sleeps",
}
SUITE = PlainSuite(
    Path(__file__).parent,
    [replace(PAIR, name=name) for name in KERNELS],
    {name: [Candidate("kernel", kernel)] for name, kernel in KERNELS.items()},
)
