"""Every wrong call of the gated-delta-net pairs, on cases that offer room for it: refused by reference and kernel alike."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelpair.call.runner import InProcess, Runner
from kernelpair.contract.case import WRONG_CALL
from kernelpair.trial.check import check
from optimized import selected_tier
from properties import pairs
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.gdn_attention_core.cases import GdnCase
from properties.suite import subject as ours

POOL = ChunkCase(form="pool", lengths=(2, 3), key_heads=2, group=2, before=1, after=1, spare=4, K=16, V=16)
LAYER = GdnCase(decodes=2, prefills=(3, 2), key_heads=1, group=2, bias="call", spare=2)
ROOMS: dict[str, list[Any]] = {
    "chunk_gated_delta_rule": [POOL, replace(POOL, form="functional"), replace(POOL, key_heads=1)],
    "gdn_attention_core": [LAYER, replace(LAYER, dtype="bfloat16", state="bfloat16")],
}
WRONG = [(pair, name) for pair in ROOMS for name in pairs()[pair].wrong_calls]


@pytest.fixture(scope="module")
def runners() -> Any:
    """One runner a pair, in this process: a refused call crashes nothing, and the guard pages are the trials' business."""
    made: dict[str, Runner] = {}
    yield made
    for runner in made.values():
        runner.close()


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_call_is_refused(name: str, wrong: str, runners: dict[str, Runner]) -> None:
    subject = ours(pairs()[name], selected_tier())
    pair, candidate = subject.pair, subject.candidate
    runner = runners.setdefault(name, InProcess(candidate))
    tried = 0
    for case in ROOMS[name]:
        verdict = check(subject, replace(case, trial=WRONG_CALL + wrong), runner)
        assert verdict.passed, verdict.failures
        wrong_inputs = pair.wrong_calls[wrong].make(case, pair.cases.inputs(case))
        tried += wrong_inputs is not None
    assert tried, "no case offers room for this wrong call"


@pytest.mark.parametrize("name", ["mixed_qkv", "a", "b", "core_attn_out", "conv_state", "ssm_state", "A_log", "dt_bias"])
def test_a_tensor_elsewhere_is_refused_before_anything_is_written(name: str) -> None:
    pair = pairs()["gdn_attention_core"]
    given = pair.cases.inputs(LAYER)
    kept = {state: given[state].clone() for state in ("conv_state", "ssm_state")}
    with pytest.raises(TypeError, match=name):
        pair.optimized(**given | {name: given[name].to("meta")})
    for state, before in kept.items():
        assert torch.equal(given[state].view(torch.uint8), before.view(torch.uint8)), "poison of unused slots included"
