"""A seed draws the same cases in every process: whatever is imported, however strings are hashed, whatever ran before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = 60
SCRIPT = """
import importlib, sys
from kernelpair.contract.verdict import Verdict
from kernelpair.search import search

class NoCalls:
    def start(self):
        pass

def drawn_only(subject, case, *rest):
    line = subject.pair.line(case)
    print(line)
    return Verdict(case, line, calls=1)

search.check = drawn_only
before, between, pairs, seed, cases = sys.argv[1:]
for name in before.split():
    importlib.import_module(name)
if "random" in before:
    importlib.import_module("random").seed(1)
import properties
from properties.suite import SUITE, subject
for name in pairs.split():
    pair = properties.pairs()[name]
    search.Search(subject(pair, SUITE.candidates(pair)[0].name), NoCalls()).run(int(cases), None, int(seed), None)
    for module in between.split():
        importlib.import_module(module)
"""
PAIRS = "store_cache gated_delta_rule_update causal_conv1d paged_attention"


def drawn(
    folder: Path, before: str = "", between: str = "", hash_seed: str = "0", pairs: str = PAIRS, seed: int = 5
) -> list[str]:
    """The lines that a process of its own draws, in the order of the pairs' names."""
    command = [sys.executable, "-c", SCRIPT, before, between, pairs, str(seed), str(CASES)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines(), key=lambda line: line.split(",")[0])  # stable: each pair's own order stays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules of somebody's own, full of numbers and words."""
    made = tmp_path_factory.mktemp("modules")
    (made / "many_constants.py").write_text("X = [" + ", ".join(str(n * 37 % 5003) for n in range(900)) + ", 0.125, 'offset']\n")
    (made / "more_constants.py").write_text("Y = (1, 2, 3, 5, 8, 13, 31, 33, 63, 65, 127, 129, 1.5, 'padded')\n")
    return made


@pytest.fixture(scope="module")
def usual(folder: Path) -> list[str]:
    lines = drawn(folder)
    assert len(lines) == CASES * len(PAIRS.split())
    assert len(set(lines)) > len(lines) // 2
    return lines


@pytest.mark.parametrize(
    "options",
    [
        {"before": "many_constants more_constants"},
        {"between": "many_constants"},
        {"before": "tests.selftest.toy tests.kernels random", "hash_seed": "1"},
        {"hash_seed": "4242", "pairs": " ".join(reversed(PAIRS.split()))},
    ],
    ids=["modules", "modules between", "tests and another hash seed", "another order and hash seed"],
)
def test_the_same_cases_in_another_process(folder: Path, usual: list[str], options: dict[str, str]) -> None:
    assert drawn(folder, **options) == usual


def test_another_seed_draws_others(folder: Path, usual: list[str]) -> None:
    assert drawn(folder, seed=6) != usual
