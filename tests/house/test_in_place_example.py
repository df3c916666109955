"""The pair of docs/4 that changes an argument and returns a result: it passes as it stands, and each mistake is named."""

import re
import sys
from pathlib import Path

import pytest

import properties
from kernelpair.call.memory import Arena
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate, module_of_file
from kernelpair.contract.subject import Subject
from kernelpair.search.search import Search
from kernelpair.search.tally import Tally

BLOCK = re.compile(r"^```python\n# add_rows\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MISTAKES = {  # of the kernel -> the kind of failure, and the tensor
    ("pool[slots] += x", "pool[:] += 1.0"): ("untouched", "pool"),
    ("return x.abs().amax(1)", "return x.amax(1)"): ("value", "largest"),
    ("pool[slots] += x\n", "pool[slots] += x; x.zero_()\n"): ("input_changed", "x"),
    ("pool[slots] += x\n", "pool[slots] += 1.001 * x\n"): ("value", "pool"),
}


def _searched(folder: Path, find: str, replace: str) -> Tally:
    (code,) = BLOCK.findall((properties.ROOT / "docs" / "4-adding-a-pair.md").read_text())
    (folder / "pair.py").write_text(code)
    assert find in code
    (folder / "kernel.py").write_text(code.replace(find, replace))
    pair = module_of_file(folder / "pair.py").PAIR
    try:
        candidate = Candidate("mine", f"{folder / 'kernel.py'}:add_rows")
        with InProcess(candidate, Arena.create(1 << 24)) as runner:
            return Search(Subject(pair, candidate), runner, shrink_seconds=2.0).run(120, None, 1, None)
    finally:
        for name in [name for name in sys.modules if name.startswith("kernelpair_file_")]:
            del sys.modules[name]


def test_it_passes_as_it_stands(tmp_path: Path) -> None:
    tally = _searched(tmp_path, "", "")
    assert tally.passed and tally.cases == 120 and tally.trials["wrong_call:slot"]


@pytest.mark.parametrize(("mistake", "seen"), MISTAKES.items(), ids=[" ".join(seen) for seen in MISTAKES.values()])
def test_a_mistake_is_named(tmp_path: Path, mistake: tuple[str, str], seen: tuple[str, str]) -> None:
    failures = [failure for verdict in _searched(tmp_path, *mistake).failures.values() for failure in verdict.failures]
    assert seen in {(failure.kind, failure.tensor) for failure in failures}
