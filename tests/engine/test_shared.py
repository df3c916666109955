"""What failing cases share: kernels with a planted fault, and the sentence that names it."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.memory import Arena
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.subject import Subject
from kernelpair.report.lines import failures_of
from kernelpair.search import shared as surveying
from kernelpair.search.search import Search
from kernelpair.search.shared import LEAST, shared
from kernelpair.search.tally import Tally
from reference.rms_norm import rms_norm
from tests.selftest.toy import PAIR as TOY
from tests.selftest.toy import ToyCase


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "SECONDS", 600.0)


def _wrong(fails: Callable[[Tensor], bool]) -> Callable[..., Tensor | None]:
    """The kernel is off in its last column for such an x."""

    def kernel(x: Tensor, *arguments: Any, in_place: bool = False, **named: Any) -> Tensor | None:
        out = rms_norm(x, *arguments, **named)
        if out.numel() and fails(x):
            out[..., -1] += 64.0
        if not in_place:
            return out
        x.copy_(out)
        return None

    return kernel


FAULTS: dict[str, tuple[Callable[[Tensor], bool], Sequence[str]]] = {
    "dropped_tail": (lambda x: x.shape[-1] % 16 > 0, ["a partial vector"]),
    "short_rows_of_two_bytes": (
        lambda x: x.shape[-1] < 32 and x.itemsize == 2, ["width of (1 to|at most) 31", "elements of 2 bytes"]
    ),
    "one_dtype": (lambda x: x.dtype == torch.float16, ["dtype float16"]),
    "a_layout": (lambda x: not x.is_contiguous(), ["x not dense"]),
    "always": (lambda x: True, ["elements of at least 1"]),
}
dropped_tail, short_rows_of_two_bytes, one_dtype, a_layout, always = (_wrong(fails) for fails, _ in FAULTS.values())


def _searched(name: str, *, explain: bool = True, several: bool = False) -> Tally:
    pair = properties.pairs()["rms_norm"]
    candidate = Candidate("wrong", f"{__name__}:{name}")
    with InProcess(candidate, Arena.create()) as runner:
        search = Search(Subject(pair, candidate), runner, trial="value", explain=explain, several=several, shrink_seconds=2.0)
        return search.run(60, None, 1, None)


@pytest.mark.parametrize("name", FAULTS)
def test_the_sentence_names_the_planted_fault(name: str) -> None:
    tally = _searched(name)
    (says,) = tally.shared.values()
    assert all(re.search(part, says) for part in FAULTS[name][1]), says
    assert says.startswith("fails ") and "passes for all others" in says, says
    (verdict,) = tally.failures.values()
    assert {report.shared for report in failures_of(verdict, "wrong", shared=says)} == {says}


def test_so_it_is_in_a_search_for_several_defects() -> None:
    tally = _searched("one_dtype", several=True)
    assert set(tally.shared) == set(tally.failures) and any("dtype float16" in says for says in tally.shared.values())


def test_nothing_is_tried_where_nobody_asks() -> None:
    assert _searched("one_dtype", explain=False).shared == {}


# --- the sentence itself ---


def _rows(*rows: int) -> list[Case]:
    return [ToyCase(rows=count) for count in rows]


@pytest.mark.parametrize(
    ("failing", "passing", "says"),
    [
        (_rows(*range(1, LEAST)), _rows(9), ""),
        (_rows(3, 4, 5, 7), _rows(0, 1, 2), "fails for rows of at least 3 (4 cases tried), passes for all others (3)"),
        (_rows(1, 2, 3, 4), _rows(5, 6), "fails for rows of at most 4 (4 cases tried), passes for all others (2)"),
        (_rows(2, 3, 4, 5), _rows(0, 1, 6, 7), "fails for rows of 2 to 5 (4 cases tried), passes for all others (4)"),
        (_rows(1, 3, 15, 17), _rows(16, 32, 0), "fails for rows no multiple of 2 (4 cases tried), passes for all others (3)"),
        (_rows(4, 8, 12, 20), _rows(1, 6, 7, 9), "fails for rows a multiple of 4 (4 cases tried), passes for all others (4)"),
        (_rows(2, 3, 4, 5), _rows(3, 0, 1, 9), "fails only for rows of 2 to 5, in 4 of 5 such cases; passes for all others (3)"),
        (_rows(1, 2, 3, 4), [], "fails in each of 4 cases tried"),
        (_rows(1, 2, 3, 4), _rows(0), "fails in 4 of 5 cases tried"),
        (_rows(1, 6, 12, 22), _rows(*range(31)), "fails in 4 of 35 cases tried, which nothing tells from the others"),
        (_rows(1, 2, 3, 4), _rows(1, 2, 3, 4), "fails in 4 of 8 cases tried, which nothing tells from the others"),
    ],
)
def test_what_it_says(failing: list[Case], passing: list[Case], says: str) -> None:
    assert shared(TOY, failing, passing) == says


def test_what_nearly_all_failing_cases_have_is_said_where_no_condition_of_all_tells_much() -> None:
    says = shared(TOY, _rows(*range(1, 40, 2), 16), _rows(*range(0, 15, 2), *range(18, 40, 8)))
    assert says == "fails mostly for rows no multiple of 2: in 20 of 20 such cases, and in 1 of 12 others"


@pytest.mark.parametrize(("apart", "says"), [(2, "fails only for rows no multiple of 2, in 12 of 14 such cases"), (9, "width")])
def test_a_second_condition_needs_more_cases_than_chance_sets_apart(apart: int, says: str) -> None:
    failing: list[Case] = [ToyCase(rows=2 * (i % 4) + 1, width=i + 1) for i in range(12)]
    passing: list[Case] = [ToyCase(rows=2 * (i % 4), width=i + 1) for i in range(24)]
    passing += [ToyCase(rows=2 * (i % 4) + 1, width=13 + i) for i in range(apart)]
    assert says in shared(TOY, failing, passing)
