"""What is drawn: every named corner of a contract soon comes up, and each shrinks to a case that one can read."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase, settings
from torch import Tensor

import properties
from kernelpair.call.runner import Runner
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.pytest_plugin import profile_name
from kernelpair.search import search as searching
from kernelpair.search.coverage import cells
from kernelpair.search.drawing import trials
from kernelpair.search.hypothesis_internals import draws_of_the_seed
from kernelpair.search.search import Search
from kernelpair.trial.check import known_trials

PAIRS = properties.pairs()
DRAWS = 2000
MOST = 0.9  # of a pair's trials, its many wrong calls among them
SAMPLE = None if profile_name() == "nightly" else 3  # edges of a pair whose shrinking is tried: half a second each
ELEMENTS = 4096  # of all tensors together, in the smallest case that has no empty one
LINE = 400  # characters of a case that one can still read
ANY = Candidate("scalar", "")
FIND = settings(
    max_examples=DRAWS,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def some_edges() -> Iterator[tuple[Pair, str]]:
    for pair in PAIRS.values():
        step = max(1, len(pair.coverage.edges) // SAMPLE) if SAMPLE else 1
        yield from ((pair, edge) for edge in list(pair.coverage.edges)[::step][:SAMPLE])


EDGES = list(some_edges())
every_pair = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def smallest(pair: Pair, holds: Any) -> Case:
    with draws_of_the_seed():  # as a run draws
        found: Case = hypothesis.find(trials(Subject(pair, ANY)), holds, settings=FIND)
    return found


def tensors(pair: Pair, case: Case) -> dict[str, Tensor]:
    return {name: value for name, value in pair.cases.inputs(case).items() if isinstance(value, Tensor)}


def nothing_is_empty(pair: Pair, case: Case) -> bool:
    return all(tensor.numel() for tensor in tensors(pair, case).values())


@every_pair
def test_every_edge_cell_and_trial_comes_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "check", lambda subject, case, *rest: Verdict(case, ""))  # draws, and runs nothing
    names, edges, corners = known_trials(pair), set(pair.coverage.edges), set(cells(pair))

    def enough() -> bool:
        found = run.tally
        return not (edges - found.edges.keys() or corners - found.cells.keys()) and len(found.trials) >= MOST * len(names)

    run = Search(Subject(pair, ANY), Runner(), stopped=enough)
    tally = run.run(DRAWS, None, 1, None)
    missing = edges - set(tally.edges), corners - set(tally.cells), set(names) - set(tally.trials)
    assert enough(), f"{tally.cases} cases left out {missing}"


@every_pair
def test_the_smallest_case_is_the_plainest(pair: Pair) -> None:
    case = smallest(pair, lambda case: True)
    assert (case.seed, dict(case.layout), case.int32, case.poison, case.guard, case.trial) == (0, {}, (), "nan", "end", "value")
    assert case.dtype == "float32" or case.dtype == pair.signature.dtypes[0]


@every_pair
def test_a_failure_shrinks_to_few_elements(pair: Pair) -> None:
    case = smallest(pair, lambda case: nothing_is_empty(pair, case))
    sizes = {name: list(tensor.shape) for name, tensor in tensors(pair, case).items()}
    assert sum(tensor.numel() for tensor in tensors(pair, case).values()) <= ELEMENTS, sizes
    assert not case.layout and case.seed == 0


@pytest.mark.parametrize(("pair", "edge"), EDGES, ids=[f"{pair.name}-{edge}" for pair, edge in EDGES])
def test_an_edge_shrinks_to_a_small_case(pair: Pair, edge: str) -> None:
    case = smallest(pair, pair.coverage.edges[edge])
    line = pair.line(case)
    assert len(line) <= LINE, line
    assert (case.poison, case.guard, case.trial) == ("nan", "end", "value")
    assert len(case.layout) <= 2 and len(case.int32) <= 1
