"""Wrong calls at random: they come out the same everywhere, reach every argument, and show what does not check its arguments."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.runner import HarnessError, InProcess, Isolated
from kernelpair.contract.case import Case
from kernelpair.contract.pair import NotFuzzed, every_argument
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.trial.check import check
from kernelpair.trial.fuzz import made_wrong
from kernelpair.trial.judge import same_bits
from tests.selftest.toy import PAIR, ToyCase, library, toy_candidate

SEEDS = 300


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    library()


def test_the_same_seed_makes_the_same_wrong() -> None:
    given = PAIR.cases.inputs(ToyCase(rows=3, width=5))
    for seed in range(SEEDS):
        (first, says), (again, said) = made_wrong(seed, given, list(given)), made_wrong(seed, given, list(given))
        assert says == said
        for name, value in first.items():
            if isinstance(value, Tensor):
                assert (value.dtype, value.stride()) == (again[name].dtype, again[name].stride())
                assert same_bits(value, again[name])


def test_every_argument_is_made_wrong_and_the_given_ones_stay() -> None:
    given = PAIR.cases.inputs(ToyCase(rows=3, width=5))
    before = {name: value.clone() if isinstance(value, Tensor) else value for name, value in given.items()}
    touched = {name for seed in range(SEEDS) for name in given if name in made_wrong(seed, given, list(given))[1]}
    assert touched == set(given)
    for name, value in before.items():
        assert same_bits(given[name], value) if isinstance(value, Tensor) else given[name] == value


def strict_reference(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """The toy's reference with every check that a contract would have."""
    floats = torch.float32, torch.float64  # the second for the judge
    for name, value, dtypes, rank in (("x", x, floats, 2), ("slots", slots, (torch.int64,), 1), ("out", out, floats, 2)):
        if not isinstance(value, Tensor) or value.dtype not in dtypes:
            raise TypeError(f"{name} must be a tensor of {dtypes[0]}")
        if value.dim() != rank or not value.is_contiguous():
            raise ValueError(f"{name} must be contiguous with {rank} dimensions")
    if not isinstance(scale, float):
        raise TypeError("scale must be a float")
    if x.shape[1:] != out.shape[1:] or len(slots) != len(x) or len(slots.unique()) != len(slots):
        raise ValueError("x, out and slots do not fit each other")
    if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < len(out):
        raise IndexError("slots holds a slot outside of out")
    out[slots] = scale * x


def of_any_strides(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    """The same, for x of any strides."""
    strict_reference(x.contiguous() if isinstance(x, Tensor) else x, slots, out, scale)


def _fuzz(name: str, reference: Callable[..., None] = strict_reference) -> list[Verdict]:
    pair = replace(PAIR, reference=reference, fuzz=every_argument)
    candidate = toy_candidate(name)
    with Isolated(candidate, hang_seconds=5.0) as runner:
        cases = [ToyCase(rows=3, width=5, seed=seed, trial="fuzz") for seed in range(60)]
        return [check(Subject(pair, candidate), case, runner) for case in cases]


def test_a_kernel_that_checks_nothing_is_caught() -> None:
    kinds = {failure.kind for verdict in _fuzz("good") for failure in verdict.failures}
    assert kinds & {"missing_error", "exception"}


def test_a_kernel_that_refuses_what_the_reference_accepts_is_caught() -> None:
    failures = [failure for verdict in _fuzz("too_strict") for failure in verdict.failures if failure.tensor == "scale"]
    assert any("which the reference accepts: ValueError" in failure.detail for failure in failures), failures


def test_a_kernel_that_reads_strides_wrongly_is_caught() -> None:
    """That of the last dimension, which no case of this pair draws."""
    failures = [failure for verdict in _fuzz("good", of_any_strides) for failure in verdict.failures]
    wrong = [failure.detail for failure in failures if failure.kind == "value"]
    assert any(detail.startswith(("x with gaps: ", "x turned: ")) for detail in wrong), wrong
    assert not [failure for verdict in _fuzz("good") for failure in verdict.failures if failure.kind == "value"]


def test_a_failure_is_about_what_was_made_wrong() -> None:
    """Not about the first argument of the call, whatever was done to the others."""
    failures = [failure for verdict in _fuzz("good") for failure in verdict.failures]
    about = {failure.tensor: failure.detail for failure in failures if failure.kind in ("missing_error", "exception")}
    assert {"x", "slots", "out"} <= set(about) and any(" and " in names for names in about)
    for names, detail in about.items():
        first, *second = names.split(" and ")
        assert detail.startswith(f"{first} ") and all(f" and {name} " in detail for name in second)


def test_a_reference_with_another_error_is_a_fault_of_the_pair() -> None:
    def refuses_strangely(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
        raise KeyError("x")

    pair = replace(PAIR, reference=refuses_strangely, fuzz=every_argument)
    candidate = toy_candidate("good")
    with pytest.raises(HarnessError, match=r"the reference of toy answers .* with KeyError"):
        check(Subject(pair, candidate), ToyCase(rows=3, width=5, seed=1, trial="fuzz"), InProcess(candidate))


def test_every_pair_with_a_contract_of_errors_is_fuzzed() -> None:
    without = {name for name, pair in properties.pairs().items() if isinstance(pair.fuzz, NotFuzzed)}
    assert without == {"gdn_core", "linear_modules", "mla_workspace", "models", "serving"}  # programs: the steps are their own


def test_fuzzing_draws_no_argument_of_the_pairs_own() -> None:
    pair = properties.pairs()["causal_conv1d"]
    case: Case = pair.cases.type()
    assert "form" not in pair.fuzzed(case, pair.cases.inputs(case))
