"""A pad slot that 32 bits do not hold: kernels in torch would compare int32 with its lower half, so no call has both."""

from dataclasses import replace

import pytest
import torch

import properties
from kernelpair.call.memory import Placed
from kernelpair.call.outcome import CallRequest, Outcome
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check
from properties.causal_conv1d.cases import ConvCase
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.decode_attention.cases import DecodeAttentionCase
from properties.gated_delta_rule_update.cases import DeltaCase
from properties.gdn_attention_core.cases import GdnCase
from properties.shared.pads import BEYOND
from properties.store_cache.cases import StoreCacheCase
from properties.suite import candidate

CASES = {
    "store_cache": StoreCacheCase(rows=2, spare=1),
    "causal_conv1d": ConvCase(states=True, indexed=True),
    "chunk_gated_delta_rule": ChunkCase(form="pool"),
    "gated_delta_rule_update": DeltaCase(),
    "gdn_attention_core": GdnCase(),
    "decode_attention": DecodeAttentionCase(lens=(3, 2), write=True, pad="beyond"),
}


class Watching(InProcess):
    """Keeps of each call whether its pad is wide, and whether any of its arguments has int32."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(candidate)
        self.seen: set[tuple[bool, bool]] = set()

    def run(self, request: CallRequest) -> Outcome:
        pad, dtypes = request.arguments.get("pad_slot"), {a.dtype for a in request.arguments.values() if isinstance(a, Placed)}
        self.seen.add((pad is not None and pad >= BEYOND, torch.int32 in dtypes))
        return super().run(request)


@pytest.mark.parametrize(("name", "case"), CASES.items())
def test_indices_stay_wide_beside_a_wide_pad(name: str, case: Case) -> None:
    pair, scalar = properties.pairs()[name], candidate(properties.pairs()[name], "scalar")
    trial = "dense" if name == "gdn_attention_core" else "layout"
    runner = Watching(scalar)
    for seed in range(6):
        verdict = check(Subject(pair, scalar), replace(case, seed=seed, trial=trial), runner)
        assert verdict.passed, verdict.failures
    assert (True, False) in runner.seen and (True, True) not in runner.seen
    assert (False, True) in runner.seen or name == "decode_attention"  # whose pad this case says
