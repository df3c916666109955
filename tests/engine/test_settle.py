"""A contract may leave a call a choice: what it chose is judged, then what follows from it; a wrong choice differs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.runner import InProcess
from kernelpair.call.values import uniform
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Bound, Cases, Inputs, Outputs, Pair, Relation, Signature, Within
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.trial.check import check

NEAR = 0.25  # rows whose largest entries are nearer than this may name either


@dataclass(frozen=True, kw_only=True)
class LargestCase(Case):
    """Rows of four entries; with `unknown`, the first row is NaN."""

    rows: int = 40
    unknown: bool = False


def largest(x: Tensor) -> dict[str, Tensor]:
    """In each row, where its largest entry is, and that entry."""
    return {"value": x.amax(-1), "where": x.argmax(-1).to(torch.int32)}


def _named(x: Tensor, where: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
    return {"value": factor * x.gather(-1, where[:, None].long())[:, 0], "where": where}


def second(x: Tensor) -> dict[str, Tensor]:
    """The second largest where the contract lets it."""
    top = x.topk(2, dim=-1)
    near = top.values[:, 0] - top.values[:, 1] < NEAR
    return _named(x, top.indices.gather(-1, near[:, None].long())[:, 0].to(torch.int32))


def always_second(x: Tensor) -> dict[str, Tensor]:
    return _named(x, x.topk(2, dim=-1).indices[:, 1].to(torch.int32))


def second_inexactly(x: Tensor) -> dict[str, Tensor]:
    return _named(x, second(x)["where"], 1 + 2.0**-10)


def first_value(x: Tensor) -> dict[str, Tensor]:
    """Says where the second largest is, and gives the largest."""
    return {"value": x.amax(-1), "where": second(x)["where"]}


def without_value(x: Tensor) -> dict[str, Tensor]:
    return {"where": second(x)["where"]}


def settle(case: LargestCase, given: Inputs, truth: Outputs, outputs: Outputs) -> Outputs:
    """Entries that are near enough to the largest are as good; of a row of NaN nothing is said but that some entry is named."""
    x, there = given["x"], (outputs["where"] >= 0) & (outputs["where"] < given["x"].shape[1])
    named = torch.where(there, outputs["where"], truth["where"])
    value = x.gather(-1, named[:, None].long())[:, 0]
    fine = there & ((truth["value"] - value < NEAR) | x.isnan().any(-1))
    return {"value": torch.where(fine, value, truth["value"]), "where": torch.where(fine, named, truth["where"])}


def bound(case: LargestCase, given: Inputs, truth: Outputs) -> Bound:
    """Of the value that is named, not of the reference's."""
    return {"value": 2.0**-20 * truth["value"].abs()}


def inputs(case: LargestCase) -> Inputs:
    x = uniform(case.seed, "x", (case.rows, 4))
    if case.unknown:
        x[:1] = torch.nan
    return {"x": x}


PAIR = Pair(
    name="largest",
    reference=largest,
    optimized=second,
    cases=Cases(type=LargestCase, version=1, strategy=st.builds(LargestCase), inputs=inputs),
    signature=Signature(results=("value", "where")),
    truth=Within(bound, settle=settle),
)


def tried(kernel: Callable[[Tensor], Any], pair: Pair = PAIR, rounding: str = "", **fields: Any) -> Verdict:
    ours = Subject(pair, Candidate("theirs", f"{__name__}:{kernel.__name__}"), rounding=rounding)
    with InProcess(ours.candidate) as runner:
        return check(ours, LargestCase(seed=3, **fields), runner)


@pytest.mark.parametrize("kernel", [largest, second])
@pytest.mark.parametrize("trial", ["value", "repeat", "threads", "poison"])
def test_any_choice_that_the_contract_allows_passes(kernel: Callable[[Tensor], Any], trial: str) -> None:
    verdict = tried(kernel, trial=trial)
    assert verdict.passed, verdict.failures
    assert "value" in verdict.tightness


def test_the_choices_differ() -> None:
    x = inputs(LargestCase(seed=3))["x"]
    assert not torch.equal(second(x)["where"], largest(x)["where"])


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        (always_second, {"value", "where"}),
        (second_inexactly, {"value"}),
        (first_value, {"value"}),
        (without_value, {"value", "where"}),
    ],
)
def test_a_wrong_choice_or_what_does_not_follow_from_it_is_found(kernel: Callable[[Tensor], Any], wrong: set[str]) -> None:
    assert {failure.tensor for failure in tried(kernel).failures} == wrong


def test_an_element_that_the_contract_leaves_open_is_not_judged() -> None:
    assert tried(second, unknown=True).passed
    strict = replace(PAIR, truth=Within(bound))
    assert not tried(second, strict, unknown=True).passed


def test_relations_see_the_truth_that_judged() -> None:
    seen: list[Any] = []
    noting = Relation(lambda case, session: seen.append(session.first), "looks at the first call")
    tried(second, replace(PAIR, relations={"look": noting}), trial="look")
    assert [torch.equal(call.truth["where"], call.outputs["where"]) for call in seen] == [True]


def test_a_declared_rounding_may_settle_in_another_way() -> None:
    wide = Within(bound, settle=lambda case, given, truth, outputs: _named(given["x"], outputs["where"]))
    lenient = replace(PAIR, truth=Within(bound, settle=settle, roundings={"any entry": wide}))
    verdict = tried(always_second, lenient, rounding="any entry")
    assert verdict.passed and set(verdict.gaps) == {"value", "where"}
    assert not tried(second, lenient, rounding="any entry").gaps
