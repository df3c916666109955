"""Results that are no tensors, calls that are refused, and calls after the first: each is judged like what is seen most often."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernelpair.call.runner import Isolated
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL
from kernelpair.contract.pair import Cases, Inputs, NotFuzzed, Pair, Signature, Within, WrongCall
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Failure
from kernelpair.trial.check import check
from kernelpair.trial.judge import same_plain
from tests.selftest.toy import ROUNDOFF, ToyCase, inputs, strategy

CASE = ToyCase(rows=3, width=5)


def reference(x: Tensor, scale: float) -> dict[str, Any]:
    """`scale * x`, and its rows. TypeError for halves."""
    if x.dtype == torch.float16:
        raise TypeError("x must be float32")
    return {"y": scale * x, "rows": len(x)}


def _inputs(case: ToyCase) -> Inputs:
    return {"x": inputs(case)["x"], "scale": 0.75}


PAIR = Pair(
    name="scaled_rows",
    reference=reference,
    optimized=reference,
    cases=Cases(type=ToyCase, version=1, strategy=strategy(), inputs=_inputs),
    signature=Signature(results=("y", "rows"), layouts={"x": ("dense",)}),
    truth=Within(lambda case, given, truth: {"y": ROUNDOFF * truth["y"].abs()}),
    wrong_calls={"half": WrongCall(lambda case, given: given | {"x": given["x"].half()}, TypeError, "x")},
    fuzz=NotFuzzed("one wrong call is enough here"),
)

_calls = [0]
_ring: dict[tuple[int, ...], list[Tensor]] = {}
_left: list[str] = []


def _another() -> int:
    _calls[0] += 1
    return _calls[0]


def rows_as_float(x: Tensor, scale: float) -> dict[str, Any]:
    return reference(x, scale) | {"rows": float(len(x))}


def counts_calls(x: Tensor, scale: float) -> dict[str, Any]:
    """Another plain result in each second call that has the first one's arguments."""
    return reference(x, scale) | {"rows": len(x) + (_another() > 1)}


def returns_once(x: Tensor, scale: float) -> dict[str, Any] | None:
    return reference(x, scale) if _another() == 1 else None


def raises_in_the_fourth(x: Tensor, scale: float) -> dict[str, Any]:
    if _another() > 3:
        raise RuntimeError("no more")
    return reference(x, scale)


def dies_in_the_fourth(x: Tensor, scale: float) -> dict[str, Any]:
    if _another() > 3:
        os.abort()
    return reference(x, scale)


def ring_of_eight(x: Tensor, scale: float) -> dict[str, Any]:
    ring = _ring.setdefault(tuple(x.shape), [torch.empty(x.shape) for _ in range(8)])
    return reference(x, scale) | {"y": torch.mul(x, scale, out=ring[_another() % 8])}


def one_buffer(x: Tensor, scale: float) -> dict[str, Any]:
    (buffer,) = _ring.setdefault(tuple(x.shape), [torch.empty(x.shape)])
    return reference(x, scale) | {"y": torch.mul(x, scale, out=buffer)}


def with_starts(x: Tensor, scale: float) -> dict[str, Any]:
    """`scale * x`, and where its rows begin: the same numbers whatever the data."""
    return {"y": scale * x, "starts": torch.arange(len(x)) * x.shape[1]}


def one_table_of_starts(x: Tensor, scale: float) -> dict[str, Any]:
    (table,) = _ring.setdefault(tuple(x.shape), [with_starts(x, scale)["starts"]])
    return with_starts(x, scale) | {"starts": table}


def moves_what_it_refuses(x: Tensor, scale: float) -> dict[str, Any]:
    if x.dtype == torch.float16:
        x.unsqueeze_(0)
    return reference(x, scale)


def reforms_what_it_refuses(x: Tensor, scale: float) -> dict[str, Any]:
    if x.dtype == torch.float16:
        x.requires_grad_()
    return reference(x, scale)


def leaves_what_it_refuses(x: Tensor, scale: float) -> dict[str, Any]:
    if x.dtype == torch.float16:
        _left.append("tiles stay configured")
    return reference(x, scale)


def left() -> str:
    return _left.pop() if _left else ""


def shares_through_numpy(x: Tensor, scale: float) -> dict[str, Any]:
    return reference(x, scale) | {"y": torch.from_numpy(x.numpy())}


def new_through_numpy(x: Tensor, scale: float) -> dict[str, Any]:
    results = reference(x, scale)
    return results | {"y": torch.from_numpy(x.numpy() * np.float32(scale))}


def failures(name: str, trial: str = "value") -> list[Failure]:
    return found_in(name, replace(CASE, trial=trial))[0]


def found_in(name: str, *cases: ToyCase, pair: Pair = PAIR) -> list[list[Failure]]:
    """The failures of each case, all of them in one process."""
    candidate = Candidate("toy", f"{__file__}:{name}", left=f"{__file__}:left")
    with Isolated(candidate, preload=("properties.suite",)) as runner:
        return [check(Subject(pair, candidate), case, runner).failures for case in cases]


@pytest.mark.parametrize("trial", ["value", "repeat", "poison", "aftermath", "series", "concurrent", WRONG_CALL + "half"])
@pytest.mark.parametrize("name", ["reference", "new_through_numpy"])
def test_what_is_right_passes(name: str, trial: str) -> None:
    assert not failures(name, trial)


@pytest.mark.parametrize("trial", ["repeat", "poison", "series", "concurrent"])
@pytest.mark.parametrize("name", ["counts_calls", "returns_once"])
def test_results_that_are_no_tensors_and_missing_ones_are_compared(name: str, trial: str) -> None:
    found = failures(name, trial)
    assert {failure.kind for failure in found} == {"nondeterministic"}, found


def test_a_plain_result_of_another_type_is_wrong() -> None:
    ((kind, tensor, detail),) = [(each.kind, each.tensor, each.detail) for each in failures("rows_as_float")]
    assert (kind, tensor, detail) == ("value", "rows", "3.0, expected 3")
    assert not same_plain(True, 1) and not same_plain(1, True) and not same_plain((1, 2.0), (1, 2)) and not same_plain(None, 0)
    assert same_plain((1, "a", None), (1, "a", None)) and same_plain([True], [True])


@pytest.mark.parametrize(("name", "kind"), [("raises_in_the_fourth", "exception"), ("dies_in_the_fourth", "crash")])
def test_an_equal_call_that_gives_no_result_is_a_failure(name: str, kind: str) -> None:
    (failure,) = failures(name, "aftermath")
    assert failure.kind == kind and failure.detail.startswith("the same call again: ")


def test_a_buffer_of_a_ring_is_seen_when_its_turn_comes_again() -> None:
    (failure,) = failures("ring_of_eight", "aftermath")
    assert (failure.kind, failure.tensor) == ("overwritten", "y")


def test_a_table_that_is_handed_out_again_is_no_result_of_its_own() -> None:
    """Its numbers are right, and stay so as long as no caller writes to them."""
    pair = replace(PAIR, reference=with_starts, signature=replace(PAIR.signature, results=("y", "starts")))
    (own,) = found_in("one_table_of_starts", replace(CASE, trial="aftermath"), pair=pair)
    assert [(failure.kind, failure.tensor) for failure in own] == [("overwritten", "starts")]
    assert not found_in("with_starts", replace(CASE, trial="aftermath"), pair=pair)[0]


def test_what_became_of_a_result_of_an_earlier_case_is_not_charged_to_a_later_one() -> None:
    own, later = found_in("one_buffer", replace(CASE, trial="aftermath"), replace(CASE, seed=7))
    assert [failure.kind for failure in own] == ["overwritten"] and not later


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("moves_what_it_refuses", "layout"),
        ("reforms_what_it_refuses", "argument_form"),
        ("leaves_what_it_refuses", "left_behind"),
    ],
)
def test_a_call_that_is_refused_leaves_all_as_it_was(name: str, kind: str) -> None:
    (failure,) = failures(name, WRONG_CALL + "half")
    assert failure.kind == kind and failure.detail.startswith("half: ")


def test_a_result_may_share_memory_through_another_storage() -> None:
    assert ("layout", "the result shares memory with x") in [(f.kind, f.detail) for f in failures("shares_through_numpy")]


def checks_dense_halves_alone(x: Tensor, scale: float) -> dict[str, Any]:
    return reference(x.float() if x.stride(0) != x.shape[1] else x, scale)


def test_what_a_wrong_call_changes_is_laid_out_with_strides_too() -> None:
    strided = replace(PAIR, signature=replace(PAIR.signature, layouts={"x": ("strided",)}))
    candidate = Candidate("toy", f"{__file__}:{checks_dense_halves_alone.__name__}")
    with Isolated(candidate, preload=("properties.suite",)) as runner:
        for seed, kinds in ((0, []), (2, ["missing_error"])):
            verdict = check(Subject(strided, candidate), replace(CASE, seed=seed, trial=WRONG_CALL + "half"), runner)
            assert [failure.kind for failure in verdict.failures] == kinds
