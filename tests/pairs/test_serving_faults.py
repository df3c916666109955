"""What goes wrong in a server's life is refused with a clear error, changes nothing and the run goes on as if it had not been."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelpair.contract.pair import Stepwise
from properties.scenarios.serving import PAIR
from properties.scenarios.serving.cases import ServingCase, Step
from properties.scenarios.serving.plan import plan
from properties.scenarios.serving.sides import inputs, serve_optimized, serve_reference
from properties.scenarios.serving.wrong import WRONG, refused
from properties.scenarios.serving.wrong_calls import CALLS

SERVE = {"reference": serve_reference, "optimized": serve_optimized}
TWO: tuple[Step, ...] = (("arrive", 24, 0, 0), ("extend", 24, 0, 0), ("arrive", 24, 0, 0), ("extend", 24, 0, 0))
THREE: tuple[Step, ...] = (*TWO, ("arrive", 24, 0, 0))
FULL: tuple[Step, ...] = (("arrive", 1, 0, 0),) * 4
GONE: tuple[Step, ...] = (*TWO, ("finish", 0, 0, 0))
AFTER: tuple[Step, ...] = (("decode", 3, 0, 0), ("decode", 1, 0, 0))
# What happens before, the fault, the class of its error, and what its message says.
FAULTS: dict[str, tuple[tuple[Step, ...], Step, str, str]] = {
    "pages run out": (THREE, ("extend", 24, 0, 0), "PoolExhausted", "pages wanted"),
    "rows run out": (FULL, ("arrive", 5, 0, 0), "PoolExhausted", "all 4 rows of req_to_token are in use"),
    "values missing": (TWO, ("bad", 0, 0, 0), "ValueError", "v is None"),
    "queries of another shape": (TWO, ("bad", 1, 0, 0), "ValueError", "q must have shape"),
    "locations of another shape": (TWO, ("bad", 2, 0, 0), "ValueError", "out_cache_loc"),
    "a location outside": (TWO, ("bad", 3, 0, 0), "IndexError", "out_cache_loc"),
    "a request freed twice": (GONE, ("bad", 4, 0, 0), "ValueError", "row 0 holds no request: it was freed"),
    "a request that is too long": (TWO, ("bad", 5, 0, 0), "ValueError", "length 65 of the request in row 0"),
    "a length beyond the table": (TWO, ("bad", 6, 0, 0), "IndexError", "seq_lens[0] = 65"),
    "an unknown mode": (TWO, ("bad", 7, 0, 0), "ValueError", "mode 'prefill' is none of"),
    "a replay that is too large": (TWO, ("bad", 8, 0, 0), "ValueError", "padded_size 7 is more than max_bs 6"),
    "a slot outside, in the table": (TWO, ("bad", 9, 0, 0), "IndexError", "req_to_token: "),
    "more shared than there is": (TWO, ("bad", 10, 0, 0), "ValueError", "shared_tokens"),
    "a part of a page shared": (TWO, ("bad", 11, 0, 0), "ValueError", "shared_tokens"),
    "locations beyond the request": (TWO, ("bad", 12, 0, 0), "ValueError", "start"),
    "a request shrunk below nothing": (TWO, ("bad", 13, 0, 0), "ValueError", "length"),
}
STACKS = ("mixed", "hybrid", "encoder", "latent")  # that offer, together, whatever a wrong call needs


def life(steps: tuple[Step, ...], paged: bool, stack: str = "mixed") -> ServingCase:
    return ServingCase(stack=stack, paged=paged, page=4, steps=steps)  # type: ignore[arg-type]


def served(side: str, case: ServingCase) -> tuple[dict[str, Any], dict[str, Any]]:
    given = inputs(case)
    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    return given, SERVE[side](**copies)


def test_every_wrong_call_can_be_made() -> None:
    lives = [life((*TWO, ("bad", 0, 0, len(WRONG))), paged, stack) for stack in STACKS for paged in (False, True)]
    assert {number for case in lives for number in plan(case)[-1].wrong} == set(range(len(WRONG)))
    assert len(CALLS) == len(WRONG)


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize("side", SERVE)
@pytest.mark.parametrize("stack", STACKS)
def test_every_wrong_call_is_refused_by_both_sides(stack: str, side: str, paged: bool) -> None:
    arrivals: tuple[Step, ...] = (("arrive", 24, 5, 0), ("extend", 24, 0, 0))
    case = life((*arrivals, ("bad", 0, 0, len(WRONG)), *AFTER), paged, stack)
    wrong = plan(case)[len(arrivals)].wrong
    assert len(wrong) > 40
    given, outputs = served(side, case)
    classes, message, _, _, _, made = outputs["log"][len(arrivals)]
    assert made == wrong[-1] and refused(made, classes, message), (made, classes, message)
    assert isinstance(PAIR.truth, Stepwise) and not PAIR.truth.judge(case, given, outputs).failures


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize("side", SERVE)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_and_the_run_goes_on(fault: str, side: str, paged: bool) -> None:
    before, step, error, says = FAULTS[fault]
    case = life((*before, step, *AFTER), paged)
    given, outputs = served(side, case)
    at = len(before)
    assert plan(case)[at].refused == error
    classes, message, _, same_table, unasked, _ = outputs["log"][at]
    assert error in classes and says in message and same_table and not unasked, message
    pools = [name for name in outputs if name.startswith("after_")]
    assert pools and all(_same(outputs[name][at], outputs[name][at - 1]) for name in pools)
    assert [log[0] for log in outputs["log"][at + 1 :]] == [[]] * len(AFTER)
    assert isinstance(PAIR.truth, Stepwise) and not PAIR.truth.judge(case, given, outputs).failures
    _, without = served(side, replace(case, steps=(*before, *AFTER)))
    if step[0] != "arrive":  # a request that was refused has had a number
        assert all(torch.equal(outputs[name], without[name]) for name in without if name.startswith("out"))
        assert all(_same(outputs[name][-1], without[name][-1]) for name in pools)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
