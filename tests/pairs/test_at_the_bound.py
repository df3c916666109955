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
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Within
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check, read_case
from kernelpair.trial.session import JudgedCall, Session
from kernelpair.trial.truth import bound_of, widen

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
    dtype = getattr(torch, case.dtype)
    return {name: _off(value, bounds.get(name), torch.float32 if "state" in name else dtype, up, _columns(case, name))
            for name, value in results.items()}  # fmt: skip


def _columns(case: Any, name: str) -> int:
    """Of a state the elements of a column: what is bounded is the norm of all of them."""
    return case.K if "state" in name else 1


def _off(truth: Tensor, bound: Any, dtype: torch.dtype, up: int, columns: int) -> Tensor:
    if not isinstance(bound, Tensor):
        return truth.to(dtype)
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
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_within_its_bound_in_every_call_is_not_blamed(line: str, seed: int) -> None:
    pair, case = read_case(properties.pairs(), line)
    candidate = Candidate("off by the bound", f"{__name__}:{off_by_the_bound.__name__}")
    case = replace(case, seed=case.seed + seed)
    verdict = check(Subject(pair, candidate, foreign=True), case, InProcess(candidate), session_type=Noting)
    assert verdict.failures == []
