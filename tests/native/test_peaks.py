"""The rates that the roofline is drawn from are those of all the products they claim: a compiler that finds sums to be the same
keeps one, and the rate comes out too high."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import optimized

SUMS = 12  # kPeakSums of csrc/tiles/peak.h, where a vector is a register
PRODUCT = {"none": r"vfmadd\d+ps", "dots": "vdpbf16ps"}
WIDE = [tier for tier in optimized.tiers() if tier.compiled and "avx512f" in tier.flags and tier.products in PRODUCT]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not here")
@pytest.mark.skipif(optimized.build()["build_type"] != "Release", reason="the library is not compiled as it is used")
@pytest.mark.parametrize("tier", WIDE, ids=str)
def test_every_sum_of_the_peak_is_computed(tier: optimized.Tier) -> None:
    shared = {(stem, name): owner for stem, name, owner in optimized.build()["shared"]}
    owner = shared.get(("_machine_peak", tier.name), tier.name)
    build = Path(optimized.build()["build_directory"])
    path = build / "CMakeFiles" / f"kernels_{owner}.dir" / "csrc" / "kernels" / "_machine_peak.cpp.o"
    if not path.is_file():
        pytest.skip(f"the library's objects are not here: {path}")
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    loops = [loop.splitlines() for loop in re.split(r"\tj\w+ ", listing)]  # what stands between two jumps
    products = [[line for line in loop if re.search(PRODUCT[tier.products], line)] for loop in loops]
    peak, sums = max(zip(loops, products, strict=True), key=lambda one: len(one[1]))
    assert len(sums) == SUMS
    assert not any("rsp" in line for line in peak[peak.index(sums[0]) : peak.index(sums[-1])])  # registers hold them
