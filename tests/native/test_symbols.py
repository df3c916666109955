"""No object of one tier hands an inline function to another: such a function may hold instructions that a CPU lacks."""

import shutil
import subprocess
from pathlib import Path

import pytest

import optimized

LEAKING = "WVuBD"  # weak functions and objects, unique globals, and global data, which all tiers would share


def tier_objects(tier: str) -> list[Path]:
    folder = Path(optimized.build()["build_directory"]) / "CMakeFiles" / f"kernels_{tier}.dir"
    return sorted(folder.rglob("*.o"))


@pytest.mark.parametrize("tier", [tier for tier in optimized.tiers() if tier.compiled], ids=str)
def test_a_tier_defines_symbols_of_its_own_namespace_only(tier: optimized.Tier) -> None:
    objects = tier_objects(tier.name)
    if not objects or shutil.which("nm") is None:
        pytest.skip("the library's objects, or nm, are not here")
    listing = subprocess.run(["nm", "-C", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    symbols = [line.split(maxsplit=2)[1:] for line in listing.splitlines() if line[:1].isalnum() and " " in line]
    foreign = [name for kind, name in symbols if kind == "T" and not name.startswith(f"kernelpair::{tier.name}::")]
    leaking = [name for kind, name in symbols if kind in LEAKING and not name.startswith("__odr_asan.")]  # data of a sanitizer
    assert symbols and not foreign and not leaking
