"""References keep the contract that they state, and no truth and no bound depends on how its computation is cut into pieces.

Every reference is on trial as a candidate in test_pairs.py; here are the cases that one failed."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

import optimized.paged_attention
import properties
from kernelpair.call.place import settle
from kernelpair.call.runner import InProcess
from kernelpair.contract.mistakes import place_of
from kernelpair.contract.pair import Pair, Within
from kernelpair.suite import REFERENCE
from kernelpair.trial.check import check, read_case
from kernelpair.trial.truth import truth_of
from properties.suite import subject
from reference.decode_attention import decode_attention
from reference.extend_attention import extend_attention
from reference.flash_attn_varlen import flash_attn_varlen
from reference.merge_state import merge_state
from reference.paged_attention import paged_attention
from reference.store_cache import store_cache

PAIRS = properties.pairs()
LINES = [  # found by hand: SiLU in the negative tail, an empty outer dimension
    '{"pair":"causal_conv1d","v":1,"seed":550,"form":"varlen","dim":63,"states":false,"bias":"call","silu":true,"scale":100.0}',
    '{"pair":"packed_linear","v":1,"outer":[3,0],"N":1,"K":1,"bias":"float32"}',
]


@pytest.mark.parametrize("line", LINES)
def test_a_case_that_a_reference_failed(line: str) -> None:
    pair, case = read_case(PAIRS, line)
    ours = subject(pair, REFERENCE)
    with InProcess(ours.candidate) as runner:
        verdict = check(ours, case, runner)
    assert verdict.passed, verdict.failures


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_pad_beyond_32_bits_is_no_slot(dtype: torch.dtype) -> None:
    """torch compares an int32 tensor with the lower half of a number: a slot was taken for the pad."""
    rows, cache = torch.ones(1, 1, 4), torch.zeros(2, 2, 1, 4)
    store_cache(rows, rows, cache[0], cache[1], torch.tensor([1], dtype=dtype), pad_slot=2**32 + 1)
    assert cache[:, 1].eq(1).all()


def paged_call(q: torch.Tensor, **changes: Any) -> dict[str, Any]:
    """One request of three keys, for paged_attention."""
    pages = torch.randn(1, 3, 1, 2)
    given = {"q": q, "k_cache": pages, "v_cache": pages, "page_table": torch.zeros(1, 1, dtype=torch.int64), "cache_seqlens": 3}
    return given | {"cu_seqlens_q": torch.tensor([0, 1])} | changes


@pytest.mark.parametrize("offsets", [[0, 1], torch.tensor([0.0, 1.0])], ids=["list", "floats"])
@pytest.mark.parametrize("call", [paged_attention, optimized.paged_attention.paged_attention], ids=["reference", "optimized"])
def test_offsets_beside_queries_of_four_dimensions_are_indices(call: Any, offsets: Any) -> None:
    with pytest.raises(TypeError, match="cu_seqlens_q"):
        call(**paged_call(torch.randn(1, 1, 1, 2), cu_seqlens_q=offsets))


@pytest.mark.parametrize("first", [True, False])
def test_the_part_that_has_keys_alone_keeps_its_bits(first: bool) -> None:
    """A NaN got another payload."""
    values = torch.tensor([[[0x0001, 0x7F81]]], dtype=torch.int16).view(torch.bfloat16)
    parts = [(values, torch.zeros(1, 1)), (torch.zeros_like(values), torch.full((1, 1), -torch.inf))]
    (v_a, lse_a), (v_b, lse_b) = parts if first else parts[::-1]
    assert merge_state(v_a, lse_a, v_b, lse_b)[0].view(torch.int16).tolist() == [[[0x0001, 0x7F81]]]


def test_a_bool_is_a_window_of_one() -> None:
    """torch does not subtract it."""
    x, offsets, out = torch.rand(3, 1, 2), torch.tensor([0, 3]), torch.empty(2, 3, 1, 2)
    lengths, none = torch.tensor([3]), torch.tensor([0])
    for number, window in enumerate((True, 1)):
        extend_attention(x, x, x, out[number], x, x, torch.zeros(1, 3).long(), none, lengths, lengths, none, None, None, 1.0,
                         sliding_window=window)
    assert out[0].equal(out[1])
    flash = [flash_attn_varlen(x, x, x, offsets, offsets, window_left=size, window_right=size) for size in (True, 1)]
    assert flash[0].equal(flash[1])
    given = paged_call(x[:1], causal=False)
    paged = [paged_attention(**given | {"window_left": size, "window_right": size}) for size in (True, 1)]
    assert paged[0].equal(paged[1])


def test_a_location_that_nobody_reads_is_a_tensor() -> None:
    x, one = torch.rand(1, 1, 2), torch.tensor([1])
    with pytest.raises(TypeError, match="loc"):
        decode_attention(x, x, x.clone(), x.clone(), None, None, "x", torch.empty(1, 1, 1, 3), one[None] - 1, one - 1, one,  # type: ignore[arg-type]
                         None, None, 1.0)


# --- pieces ---


def constants() -> Iterator[tuple[ModuleType, str]]:
    """How much is computed at once: every such number of a reference, a bound or a judge."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in ("reference", "properties"):
            yield from ((module, constant) for constant in vars(module) if constant.endswith("_AT_ONCE"))


def evaluated(pair: Pair, case: Any) -> dict[str, torch.Tensor]:
    """Truth and bound of a case, as one mapping."""
    truth, inputs = truth_of(pair, settle(pair, case, pair.cases.inputs(case)))
    found = {f"truth of {name}": value for name, value in truth.items() if isinstance(value, torch.Tensor)}
    if isinstance(pair.truth, Within):
        for bound in filter(None, (pair.truth.bound, pair.truth.ours)):
            bounds = bound(case, inputs, truth)
            found |= {f"{place_of(bound)} of {name}": each for name, each in bounds.items() if isinstance(each, torch.Tensor)}
    return found


def test_the_constants_are_found() -> None:
    owners = {module.__name__ for module, _ in constants()}
    assert {"reference.extend_attention", "reference.paged_attention", "properties.paged_attention.bound"} <= owners


@pytest.mark.parametrize("pair", [pair for pair in PAIRS.values() if isinstance(pair.truth, Within)], ids=lambda pair: pair.name)
def test_truth_and_bound_do_not_depend_on_the_pieces(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {(module, name): getattr(module, name) for module, name in constants()}

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(1)
    @given(pair.cases.strategy)
    def attempt(case: Any) -> None:
        whole = evaluated(pair, case)
        try:
            for (module, name), _ in usual.items():
                setattr(module, name, 1)  # a row at a time
            cut = evaluated(pair, case)
        finally:
            for (module, name), value in usual.items():
                setattr(module, name, value)
        for name, value in whole.items():
            # Sums in another order differ by float64 roundings; a piece that changes what the next one gets, by far more.
            assert torch.allclose(value.double(), cut[name].double(), rtol=1e-6, atol=1e-30, equal_nan=True), f"{name}: {case}"

    attempt()
