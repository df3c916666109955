"""Bugs patched into the machine code of the amx tier are noticed, with its tile instructions trapped as on hardware."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import optimized
from kernelpair.contract.verdict import KINDS
from kernelpair.sources import BuildError
from properties.object_mutants import MUTANTS, ObjectMutant, build, tier, tried
from properties.suite import SUITE

AMX = next(known for known in SUITE.tiers() if known.name == tier())
CASES = 300
DEFINITE = {"missing-release": "left_behind", "wrong-store": "value", "skipped-product": "value"}

pytestmark = [
    pytest.mark.skipif(not (AMX.runnable or AMX.run_as), reason=AMX.reason),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not here"),
    pytest.mark.skipif(optimized.build()["build_type"] != "Release", reason="patches are of code as it is used"),
    pytest.mark.usefixtures("in_a_folder_of_its_own"),
]


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 6


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_patched_object_is_noticed(mutant: ObjectMutant, tmp_path: Path) -> None:
    if AMX.runnable and mutant.name == "missing-release":
        pytest.skip("hardware does not tell which tiles are configured")
    tally = tried(mutant, tmp_path / "built", CASES)
    assert tally.first is not None, f"{mutant.says}: not noticed in {tally.cases} cases"
    assert tally.first.kind == DEFINITE.get(mutant.name, tally.first.kind) and tally.first.kind in KINDS


def test_the_same_library_with_nothing_patched_passes(tmp_path: Path) -> None:
    same = replace(MUTANTS[0], patch=lambda code: code)
    tally = tried(same, tmp_path / "built", CASES)
    assert tally.passed and tally.cases >= CASES and tally.executed["amx products"] > 0


def test_an_instruction_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"stride-register: packed_linear.cpp.o has \d+ of 'tileloadd.*', wanted is number 999"):
        build(replace(MUTANTS[0], number=999), tmp_path / "built")
