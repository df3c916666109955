"""A kernel that two tiers share is the same text for both compilers: nothing in it tells the tiers apart."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import optimized
from kernelpair.changes import closure
from properties import ROOT

SHARED = [tuple(entry) for entry in optimized.build()["shared"]]
TIERS = {tier.name: tier for tier in optimized.tiers()}
MARKER = re.compile(r'^# \d+ "([^"]+)"')
CSRC = ROOT / "csrc"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no compiler")


def text(stem: str, tier: str) -> str:
    """Our own lines of a kernel and of those that it calls, as they are compiled for a tier, but for its name."""
    root = CSRC / "kernels" / f"{stem}.cpp"
    return "\n".join(compiled(file, tier) for file in sorted(closure(ROOT, [root], ("csrc",))) if file.match("kernels/*.cpp"))


def compiled(source: Path, tier: str) -> str:
    switches = [f"-DKP_TIER={tier}", f"-DKP_PRODUCTS_{TIERS[tier].products.upper()}=1", *TIERS[tier].flags.split()]
    words = [str(COMPILER), "-std=gnu++20", "-O2", f"-I{CSRC}", *switches, "-E", str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    kept, ours = [], False
    for line in done.splitlines():
        if marker := MARKER.match(line):
            ours = marker[1].startswith(str(CSRC))
        elif ours and line.strip():
            kept.append(re.sub(rf"\b{tier}\b", "TIER", line))
    return "\n".join(kept)


@pytest.mark.parametrize(("stem", "tier", "owner"), SHARED, ids=[f"{stem}-{tier}" for stem, tier, _ in SHARED])
def test_nothing_in_a_shared_kernel_tells_the_tiers_apart(stem: str, tier: str, owner: str) -> None:
    owners = text(stem, owner)
    assert len(owners) > 1000 and text(stem, tier) == owners


def test_sources_that_are_not_shared_do_differ() -> None:
    for stem, owner, tier in (
        ("packed_linear", "scalar", "amx_emulated"),
        ("int8_linear", "avx512", "avx512_vnni"),
        ("mla_decode", "avx512_vnni", "avx512_bf16"),  # what it calls
    ):
        if TIERS[owner].compiled and TIERS[tier].compiled:
            assert (stem, tier, owner) not in SHARED and text(stem, tier) != text(stem, owner)


def test_tiers_that_differ_in_width_share_nothing() -> None:
    assert SHARED or not all(tier.compiled for tier in TIERS.values())
    for _, tier, owner in SHARED:
        assert {"avx2", "avx512f"} & {*cpu(owner)} == {"avx2", "avx512f"} & {*cpu(tier)} and {*cpu(owner)} <= {*cpu(tier)}


def cpu(tier: str) -> list[str]:
    """What a tier's compiler may use of the CPU."""
    return [flag.removeprefix("-m") for flag in TIERS[tier].flags.split() if flag.startswith("-m") and "=" not in flag]
