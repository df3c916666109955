"""A kernel that is off by nearly its bound in every call does what its contract says: no relation of calls may blame it."""

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.results import named_results
from kernelpair.call.runner import InProcess
from kernelpair.call.values import rounded_once
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Within
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check, read_case
from kernelpair.trial.session import JudgedCall, Session
from kernelpair.trial.truth import bound_of, result_dtype, widen

NEAR = 0.95  # of the bound
_asked: list[Any] = []  # the case of the call that is made


class Noting(Session):
    """Notes which case each call has: the bound depends on it."""

    def run(self, case: Any = None, *given: Any, **more: Any) -> JudgedCall:
        _asked[:] = [self.pair, case or self.case]
        return super().run(case, *given, **more)


def off_by_the_bound(**given: Any) -> dict[str, Tensor]:
    """Up or down as the bits of the arguments say."""
    pair, case = _asked
    assert isinstance(pair.truth, Within)
    written = [name for name in pair.signature.written if isinstance(given.get(name), Tensor)]
    exact, before = ({name: widen(value) for name, value in given.items()} for _ in range(2))
    results = named_results(pair.reference(**exact), tuple(pair.signature.results))
    truth = {name: exact[name] for name in written} | results
    tensors = [value.double().contiguous() for value in before.values() if isinstance(value, Tensor)]
    up = crc32(b"".join(value.numpy().tobytes() for value in tensors)) % 2
    bounds = bound_of(pair, pair.truth, case, before, truth)
    for name in written:
        changed = (exact[name] != before[name]) & ~exact[name].isnan()
        given[name][changed] = _off(exact[name], bounds.get(name), given[name].dtype, up, _columns(case, name))[changed]
    return {name: _off(value, bounds.get(name), result_dtype(pair, case, name, value), up, _columns(case, name))
            for name, value in results.items()}  # fmt: skip


def _columns(case: Any, name: str) -> int:
    """Of a state the elements of a column: what is bounded is the norm of all of them."""
    return getattr(case, "K", 1) if "state" in name else 1


def _off(truth: Tensor, bound: Any, dtype: torch.dtype, up: int, columns: int) -> Tensor:
    if not isinstance(bound, Tensor):
        return rounded_once(truth, dtype)
    moved = (truth + (2 * up - 1) * NEAR * columns**-0.5 * bound).to(dtype)
    return torch.where((moved.double() - truth).abs() <= bound, moved, truth.to(dtype)).contiguous()


LINES = (
    '{"pair":"gdn_attention_core","v":1,"seed":468,"trial":"last_decoded","prefills":[63],"key_heads":2,"K":20,"V":48,"width":3,'
    '"silu":false,"l2norm":false,"eps":0.01,"size":0.01}',
    '{"pair":"gdn_attention_core","v":1,"seed":51,"dtype":"float16","trial":"two_prefills","prefills":[3],"cold":[0],'
    '"key_heads":2,"K":32,"width":2,"state_layout":"kv","silu":false,"l2norm":false,"eps":0.01}',
    '{"pair":"gdn_core","v":1,"seed":3236,"dtype":"bfloat16","trial":"serve","key_heads":2,"group":2,"K":20,"silu":false,'
    '"size":30.0,"steps":[[[1,3],[2,0]],[[3,0],[1,17]],[[1,0]],[[1,0]],[[1,64]]]}',
    '{"pair":"int8_linear","v":1,"seed":3084,"trial":"zero_points","form":"matmul","outer":[6],"N":15,"K":1023,"bias":"float16"}',
    '{"pair":"chunk_gated_delta_rule","v":1,"seed":5,"trial":"split","lengths":[17],"K":16,"V":16,"decay":0.0,"l2norm":false}',
    '{"pair":"act_and_mul","v":1,"trial":"reflected","activation":"gelu","outer":[3],"width":45,"size":4.0}',
    '{"pair":"act_and_mul","v":1,"dtype":"bfloat16","trial":"rows","outer":[5,7],"width":33,"special":true}',
    '{"pair":"causal_conv1d","v":1,"dtype":"bfloat16","trial":"split","form":"varlen","dim":31,"width":4,"lengths":[63],'
    '"bias":"call","silu":true}',
    '{"pair":"causal_conv1d","v":1,"trial":"alone","form":"varlen","dim":15,"width":3,"lengths":[5,3,17],"silu":true}',
    '{"pair":"decode_attention","v":1,"dtype":"bfloat16","trial":"splits","lens":[130,33,1],"heads":4,"width":64,"width_v":64,'
    '"splits":7}',
    '{"pair":"decode_attention","v":1,"trial":"extend","lens":[130,33],"heads":4,"width":64,"width_v":64,"splits":4}',
    '{"pair":"extend_attention","v":1,"dtype":"bfloat16","trial":"alone","extends":[5,17],"prefixes":[33,1],"heads":4,"width":64,'
    '"width_v":64}',
    '{"pair":"fp8_linear","v":1,"dtype":"bfloat16","trial":"equal_scales","outer":[5],"N":64,"K":256,"block":"32x64"}',
    '{"pair":"fp8_linear","v":1,"trial":"unscaled","outer":[5],"N":64,"K":256,"block":"32x64"}',
    '{"pair":"fused_moe","v":1,"dtype":"bfloat16","trial":"alone","tokens":5,"experts":8,"topk":2,"D":64,"I":32}',
    '{"pair":"gated_delta_rule_update","v":1,"dtype":"bfloat16","trial":"alone","requests":3,"key_size":64,"value_size":32}',
    '{"pair":"int4_linear","v":1,"dtype":"bfloat16","trial":"halves","outer":[5],"N":64,"K":256,"group":64}',
    '{"pair":"int4_linear","v":1,"trial":"activations","outer":[5],"N":33,"K":255}',
    '{"pair":"merge_state","v":1,"dtype":"bfloat16","trial":"whole","rows":5,"heads":3,"width":33}',
    '{"pair":"merge_state","v":1,"dtype":"float16","trial":"halves","rows":5,"heads":3,"width":33,"empty":"some"}',
    '{"pair":"mla_decode","v":1,"dtype":"bfloat16","trial":"accurate","lens":[130,40],"heads":16,"latent":64,"rope":32,"splits":3}',
    '{"pair":"packed_linear","v":1,"dtype":"bfloat16","trial":"alone","outer":[5],"N":65,"K":257,"bias":"float32"}',
    '{"pair":"packed_linear","v":1,"trial":"nan","outer":[5],"N":65,"K":257}',
    '{"pair":"paged_attention","v":1,"dtype":"bfloat16","trial":"chunked","rows":[17,1],"lens":[64,33],"page":16,"heads":4,'
    '"kv_heads":2,"width":64,"width_v":64}',
    '{"pair":"rms_norm","v":1,"dtype":"float16","trial":"groups","outer":[5],"width":16,"groups":4}',
    '{"pair":"rms_norm","v":1,"trial":"gate_of_60","outer":[5],"width":128,"form":"gate"}',
    '{"pair":"rotary_embedding","v":1,"dtype":"bfloat16","trial":"back","tokens":5,"width":64,"rotary":64}',
    '{"pair":"topk_gating","v":1,"trial":"shift","tokens":5,"experts":64,"topk":8,"values":"near"}',
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_within_its_bound_in_every_call_is_not_blamed(line: str, seed: int) -> None:
    pair, case = read_case(properties.pairs(), line)
    candidate = Candidate("off by the bound", f"{__name__}:{off_by_the_bound.__name__}")
    case = replace(case, seed=case.seed + seed)
    verdict = check(Subject(pair, candidate, foreign=True), case, InProcess(candidate), session_type=Noting)
    assert verdict.failures == []
