"""Numbers that no random case has: the result is finite, and so has to be what a kernel forms on the way."""

import pytest
import torch
from torch import Tensor

import optimized
from kernelpair.trial.truth import widen
from optimized.int8_linear import PackedInt8Weight, int8_linear
from optimized.operators import operator
from reference.chunk_gated_delta_rule import chunk_gated_delta_rule
from reference.merge_state import merge_state

TIERS = [tier.name for tier in optimized.tiers() if tier.runnable]
SUBNORMALS = torch.tensor([0x40, 1, -32717, 0x3F80] * 64, dtype=torch.int32).to(torch.int16)


def decoded(q: Tensor, k: Tensor, v: Tensor, scale: float, sinks: Tensor | None = None) -> float:
    """Element 0 of what one row makes of all keys."""
    keys, out = len(k), torch.empty(1, 1, v.shape[2])
    partials = torch.empty(1, 1, 1, v.shape[2] + 1)
    slots, request, length = torch.arange(keys)[None], torch.tensor([0]), torch.tensor([keys])
    operator("decode_attention")(q, k, v, out, None, None, None, partials, slots, request, length, None, sinks, scale)
    return float(out[0, 0, 0])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("q", "k", "dtype"), [(6e4, 5.9e4, torch.float16), (1e15, 1e15, torch.bfloat16), (1e18, 3e18, torch.float32)]
)
def test_one_key_has_all_the_weight_however_large_its_score(tier: str, q: float, k: float, dtype: torch.dtype) -> None:
    queries, keys, offsets = torch.full((1, 1, 32), q, dtype=dtype), torch.full((1, 1, 32), k, dtype=dtype), torch.tensor([0, 1])
    values = torch.full_like(keys, 3.0)
    with optimized.use_tier(tier):
        out = operator("flash_attn_varlen")(queries, keys, values, offsets, offsets)
        assert bool((out == 3).all())
        assert decoded(queries.float(), keys.float(), values.float(), 32**-0.5) == 3


@pytest.mark.parametrize("tier", TIERS)
def test_a_block_of_scores_without_weight(tier: str) -> None:
    keys = torch.zeros(300, 1, 4)
    keys[:200] = -1e20  # whose raw scores are -inf
    queries, values = torch.full((1, 1, 4), 1e20), torch.ones(300, 1, 4)
    with optimized.use_tier(tier):
        assert decoded(queries, keys, values, 1e-30) == 1
        assert decoded(queries, keys[:1], values[:1], 1e-30, sinks=torch.zeros(1)) == 0


@pytest.mark.parametrize("tier", TIERS)
def test_a_scale_next_to_the_largest_number(tier: str) -> None:
    with optimized.use_tier(tier):
        assert decoded(torch.zeros(1, 1, 4), torch.ones(2, 1, 4), torch.full((2, 1, 4), 3.0), 3e38) == 3


def test_equal_parts_next_to_the_largest_number() -> None:
    v, lse = torch.full((1, 1, 4), 3e38), torch.zeros(1, 1)
    assert torch.equal(merge_state(v, lse, v, lse)[0], v)
    assert torch.equal(operator("merge_state")(v, lse, v, lse)[0], v)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("accurate", [False, True])
def test_a_token_that_forgets_all_spoils_no_decay_behind_it(tier: str, accurate: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(64, 1, 64).bfloat16() for _ in range(3))
    g = torch.full((64, 1), -0.02)
    g[5] = -1e6
    call = (q, k, v, g, torch.full((64, 1), 0.5), None, torch.tensor([0, 64]))
    truth = chunk_gated_delta_rule(*map(widen, call))
    with optimized.use_tier(tier):
        for got, expected in zip(operator("chunk_gated_delta_rule")(*call, accurate=accurate), truth):
            assert (got.double() - expected).norm() < 0.005 * expected.norm()


@pytest.mark.parametrize("tier", TIERS)
def test_the_state_of_a_sequence_without_tokens_is_moved_as_bits(tier: str) -> None:
    state = SUBNORMALS.view(torch.bfloat16).reshape(1, 1, 16, 16)
    none, gates = torch.zeros(0, 1, 16), torch.zeros(0, 1)
    with optimized.use_tier(tier):
        final = operator("chunk_gated_delta_rule")(none, none, none, gates, gates, state, torch.tensor([0, 0]))[1]
    assert torch.equal(final.view(torch.int16).flatten(), SUBNORMALS)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_row_of_bytes_with_a_large_scale(tier: str, symmetric: bool) -> None:
    weight = PackedInt8Weight.pack(torch.full((1, 64), 127, dtype=torch.int8))
    with optimized.use_tier(tier):
        out = int8_linear(torch.full((1, 64), 1e37), weight, torch.tensor([1e-3]), None, symmetric)
    assert float(out) == pytest.approx(8.128e37, rel=1e-3)


def test_an_eps_that_the_processor_flushes_is_above_0() -> None:
    torch.set_flush_denormal(True)
    try:
        assert bool((operator("rms_norm")(torch.ones(1, 4), None, 1e-40) == 1).all())
    finally:
        torch.set_flush_denormal(False)
