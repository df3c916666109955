"""No bound, judge, aggregate or reference may change what it is given: with the switch on, the engine says which one did."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelpair.call.runner import HarnessError, InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Inputs, Outputs, Stepwise, Within, WrongCall
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Judged
from kernelpair.trial.check import check
from kernelpair.trial.purity import SWITCH, unchanged
from tests.selftest import toy

CASE = toy.ToyCase()
BOUND = toy.PAIR.truth.bound  # type: ignore[union-attr]


def spoilt_bound(case: Any, inputs: Inputs, truth: Outputs) -> Any:
    inputs["x"][..., :1] *= 2
    return BOUND(case, inputs, truth)


def spoilt_truth(case: Any, inputs: Inputs, truth: Outputs) -> Any:
    truth["out"].add_(1.0)
    return BOUND(case, inputs, truth)


def spoilt_aggregate(case: Any, inputs: Inputs, truth: Outputs, outputs: Outputs) -> list[tuple[str, str, float]]:
    outputs["out"] = outputs["out"].clone()
    return []


def spoilt_settle(case: Any, inputs: Inputs, truth: Outputs, outputs: Outputs) -> Outputs:
    truth["out"].add_(1.0)
    return truth


def spoilt_judge(case: Any, inputs: Inputs, outputs: Outputs) -> Judged:
    inputs["x"].neg_()
    return Judged([], {})


def spoilt_wrong_call(case: Any, given: Inputs) -> Inputs:
    given["slots"][:1] = 2**31 - 1
    return given


def spoilt_reference(**given: Any) -> None:
    toy.reference(**given)
    given["slots"].sub_(1).add_(2)


SPOILT: dict[str, tuple[Callable[[], Any], str]] = {
    "bound": (lambda: replace(toy.PAIR, truth=Within(spoilt_bound)), r"toy: bound changed its argument inputs\.x"),
    "truth": (lambda: replace(toy.PAIR, truth=Within(spoilt_truth)), r"toy: bound changed its argument truth\.out"),
    "aggregate": (
        lambda: replace(toy.PAIR, truth=Within(BOUND, aggregate=spoilt_aggregate)),
        r"toy: aggregate replaced its argument outputs\.out",
    ),
    "settle": (
        lambda: replace(toy.PAIR, truth=Within(BOUND, settle=spoilt_settle)),
        r"toy: settle changed its argument truth\.out",
    ),
    "judge": (lambda: replace(toy.PAIR, truth=Stepwise(spoilt_judge)), r"toy: judge changed its argument inputs\.x"),
    "reference": (lambda: replace(toy.PAIR, reference=spoilt_reference), "toy: reference changed its argument slots"),
    "wrong call": (
        lambda: replace(toy.PAIR, wrong_calls={"slot": WrongCall(spoilt_wrong_call, IndexError, ("slots",))}),
        r"toy: wrong call slot changed its argument inputs\.slots",
    ),
}

IN_PLACE = [kind for kind in SPOILT if kind != "aggregate"]  # which torch itself counts


def tried(pair: Any, trial: str = "value") -> Any:
    ours = Subject(pair, Candidate("good", "tests.selftest.toy:good"))
    with InProcess(ours.candidate) as runner:
        return check(ours, replace(CASE, trial=trial), runner)


@pytest.mark.parametrize(("kind", "switch"), [*((kind, "1") for kind in SPOILT), *((kind, "0") for kind in IN_PLACE)])
def test_what_changes_its_arguments_is_named(kind: str, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, says = SPOILT[kind]
    monkeypatch.setenv(SWITCH, switch)
    with pytest.raises(HarnessError, match=says):
        tried(made(), "wrong_call:slot" if kind == "wrong call" else "value")


def test_a_pair_that_changes_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    assert tried(toy.PAIR).passed


def test_nothing_is_compared_without_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert tried(SPOILT["aggregate"][0]()).passed


def test_nested_arguments_and_bits_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    zero, pool = torch.zeros(3), torch.zeros(2, 4)
    nested = {"x": [1, {"deep": zero}]}
    with pytest.raises(HarnessError, match=r"p: f changed its argument x\[1\]\.deep"), unchanged("p", "f", nested):
        zero.neg_()  # -0 equals 0, but has other bits
    with pytest.raises(HarnessError, match="changed the shape or place of its argument y"), unchanged("p", "f", {"y": pool}):
        pool.t_()
    written, view = torch.zeros(4), torch.zeros(4)
    with unchanged("p", "f", {"out": written, "part": written[1:], "other": view}, ("out",)):
        written.fill_(1.0)  # its own to write, and so is what shares its memory
