"""What the trials of every pair vary."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelpair.call.defaults import defaults_of, other_defaults
from kernelpair.call.runner import HarnessError, InProcess
from kernelpair.contract.pair import Within
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check
from kernelpair.trial.modes import THREADS, thread_counts
from optimized.operators import operator
from tests.selftest.toy import PAIR, ToyCase, library, reference, toy_candidate


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
def test_work_is_cut_for_few_and_for_many_threads(cores: int) -> None:
    drawn = [thread_counts(cores, seed) for seed in range(10)]
    assert all(counts[0] == 1 and counts[-1] >= 5 and THREADS not in counts for counts in drawn)
    assert {5, 9} <= {count for counts in drawn for count in counts}


def test_defaults_are_compared_where_both_sides_have_one() -> None:
    def ours(x: object, eps: float = 1e-5, silu: bool = True, only_here: int = 1, dtype: torch.dtype = torch.float32) -> None: ...
    def theirs(x: object, eps: float = 1e-6, silu: bool = True, dtype: int = 6) -> None: ...

    assert other_defaults(defaults_of(theirs), defaults_of(ours)) == {"eps": "its default is 1e-06, that of the reference 1e-05"}
    assert defaults_of(operator("rms_norm"))["eps"] == 1e-6
    assert defaults_of(dict.get) == {"default": None} and not defaults_of(iter)


def test_another_default_than_the_references_is_a_failure() -> None:
    def with_default(x: Tensor, slots: Tensor, out: Tensor, scale: float = 1.0) -> None:
        reference(x, slots, out, scale)

    library()
    candidate = toy_candidate("other_default")
    verdict = check(
        Subject(replace(PAIR, reference=with_default), candidate), ToyCase(rows=3, width=5, trial="repeat"), InProcess(candidate)
    )
    assert [(failure.kind, failure.tensor) for failure in verdict.failures] == [("default", "scale")]


def test_a_bound_of_rows_is_that_of_their_elements_and_one_of_another_shape_is_refused() -> None:
    library()
    good, wrong, case = toy_candidate("good"), toy_candidate("small_error"), ToyCase(rows=3, width=5)

    def within(shape: tuple[int, ...]) -> Subject:
        bounds = Within(lambda case, given, truth: {"out": torch.full(shape, 1e-6, dtype=torch.float64)})
        return Subject(replace(PAIR, truth=bounds), good)

    for shape in ((), (3, 1), (5,)):
        assert check(within(shape), case, InProcess(good)).passed
        (failure,) = check(within(shape), case, InProcess(wrong)).failures
        assert failure.kind == "value"
    with pytest.raises(HarnessError, match=r"the bound of out has shape \[4\] for one of shape \[3, 5\]"):
        check(within((4,)), case, InProcess(good))
