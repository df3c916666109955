"""Every wrong call of the gated-delta-net pairs, on cases that offer room for it: refused by reference and kernel alike."""

from dataclasses import replace
from typing import Any

import pytest

from kernelpair.case import REJECTS
from kernelpair.check import check
from kernelpair.run import InProcess, Runner
from optimized import selected_tier
from properties import pairs
from properties._chunk_gated_delta_rule_cases import ChunkCase
from properties._gdn_attention_core_cases import GdnCase
from properties.candidates import resolve

POOL = ChunkCase(form="pool", lengths=(2, 3), key_heads=2, group=2, before=1, after=1, spare=4, K=16, V=16)
LAYER = GdnCase(decodes=2, prefills=(3, 2), key_heads=1, group=2, bias="call", spare=2)
ROOMS: dict[str, list[Any]] = {
    "chunk_gated_delta_rule": [POOL, replace(POOL, form="functional"), replace(POOL, key_heads=1)],
    "gdn_attention_core": [LAYER, replace(LAYER, dtype="bfloat16", state="bfloat16")],
}
WRONG = [(pair, name) for pair in ROOMS for name in pairs()[pair].bad]


@pytest.fixture(scope="module")
def runners() -> Any:
    """One runner a pair, in this process: a refused call crashes nothing, and the guard pages are the trials' business."""
    made: dict[str, Runner] = {}
    yield made
    for runner in made.values():
        runner.close()


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_call_is_refused(name: str, wrong: str, runners: dict[str, Runner]) -> None:
    pair, candidate = resolve(name, selected_tier())
    runner = runners.setdefault(name, InProcess(candidate))
    tried = 0
    for case in ROOMS[name]:
        verdict = check(pair, candidate, replace(case, trial=REJECTS + wrong), runner)
        assert verdict.passed, verdict.failures
        spoiled = pair.bad[wrong].spoil(case, pair.inputs(case))
        tried += spoiled is not None
    assert tried, "no case offers room for this wrong call"
