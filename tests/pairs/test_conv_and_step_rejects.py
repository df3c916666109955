"""Every wrong call and every relation of the convolution, the gates and the recurrent step, on cases that offer room for it."""

import importlib
from dataclasses import replace
from typing import Any

import pytest

from kernelpair.call.runner import InProcess, Runner
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check
from optimized import selected_tier
from properties.causal_conv1d.cases import ConvCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.gdn_gating.cases import GatingCase

VARLEN = ConvCase(
    form="varlen", lengths=(3, 0, 7), dim=40, width=4, indexed=True, initial="some", bias="call", before=1, after=1, silu=True
)
UPDATE = ConvCase(form="update", lengths=(1, 1, 1), dim=40, width=4, indexed=True, bias="float32", spare=1)
STEP = DeltaCase(requests=3, key_heads=2, group=2, key_size=20, value_size=18, spare=1)
ROOMS: dict[str, list[Any]] = {
    "causal_conv1d": [
        VARLEN,
        replace(VARLEN, form="batched", lengths=(5, 5), before=0, after=0, indexed=False),
        UPDATE,
        replace(UPDATE, indexed=False),
        ConvCase(form="pack", dim=40, width=3),
    ],
    "gdn_gating": [GatingCase(rows=3, heads=20), GatingCase(rows=3, heads=20, dtype="bfloat16")],
    "gated_delta_rule_update": [STEP, replace(STEP, state_layout="vk", state_dtype="bfloat16", dtype="bfloat16")],
}
PAIRS: dict[str, Pair] = {name: importlib.import_module(f"properties.{name}").PAIR for name in ROOMS}


@pytest.fixture(scope="module")
def runners() -> Any:
    """One runner a pair, in this process: a refused call crashes nothing, and the guard pages are the trials' business."""
    made: dict[str, Runner] = {}
    yield made
    for runner in made.values():
        runner.close()


def hold(name: str, case: Any, runners: dict[str, Runner]) -> None:
    candidate = Candidate(selected_tier(), f"properties.{name}:PAIR.optimized")
    verdict = check(Subject(PAIRS[name], candidate), case, runners.setdefault(name, InProcess(candidate)))
    assert verdict.passed, verdict.failures


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, pair in PAIRS.items() for wrong in pair.wrong_calls])
def test_wrong_call_is_refused(name: str, wrong: str, runners: dict[str, Runner]) -> None:
    tried = 0
    for case in ROOMS[name]:
        hold(name, replace(case, trial=WRONG_CALL + wrong), runners)
        tried += PAIRS[name].wrong_calls[wrong].make(case, PAIRS[name].cases.inputs(case)) is not None
    assert tried, "no case offers room for this wrong call"


@pytest.mark.parametrize(("name", "relation"), [(name, rel) for name, pair in PAIRS.items() for rel in pair.relations])
def test_relation_holds(name: str, relation: str, runners: dict[str, Runner]) -> None:
    rooms = [case for case in ROOMS[name] if PAIRS[name].relations[relation].applies(case)]
    for case in rooms:
        hold(name, replace(case, trial=relation), runners)
    assert rooms, "no case to which this relation applies"
