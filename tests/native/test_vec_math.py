"""The vector layer in every tier: conversions are exact, elementary functions as accurate as the contracts say."""

import numpy as np
import pytest
import torch
from torch import Tensor

import optimized

RUNNABLE = [tier for tier in optimized.tiers() if tier.runnable]
EPS = 2.0**-18
pytestmark = pytest.mark.parametrize("tier", RUNNABLE, ids=str)


def run(tier: optimized.Tier, function: str, x: Tensor, widen: bool = True) -> Tensor:
    with optimized.use_tier(tier.name):
        return torch.ops.kernelpair._vec_function(function, x, widen)


def spread(low: float, high: float, count: int = 400_003) -> Tensor:
    """Evenly spaced points, the small numbers of either sign, and the ends."""
    small = torch.logspace(-40, 0, 4001, base=10.0, dtype=torch.float64)
    points = torch.cat([torch.linspace(low, high, count, dtype=torch.float64), small, -small])
    return points[(points >= low) & (points <= high)].float()


def relative_error(got: Tensor, truth: Tensor, floor: float = 2.0**-126) -> float:
    """Largest error over the truth, where the truth is not below `floor`."""
    keep = truth.abs() >= floor
    return ((got.double() - truth)[keep].abs() / truth[keep].abs()).max().item()


ONE_SIDED = {
    "exp": (torch.exp, -103.0, 88.7),
    "exp2": (torch.exp2, -149.0, 127.99),
    "sigmoid": (torch.sigmoid, -87.0, 100.0),
    "silu": (lambda x: x * torch.sigmoid(x), -92.0, 100.0),  # x exp(x) is normal where exp(x) is not
    "softplus": (lambda x: torch.log1p(torch.exp(-x.abs())) + x.clamp_min(0), -87.0, 100.0),
}


@pytest.mark.parametrize("function", ONE_SIDED)
def test_relative_error(tier: optimized.Tier, function: str) -> None:
    truth, low, high = ONE_SIDED[function]
    x = spread(low, high)
    assert relative_error(run(tier, function, x), truth(x.double())) <= EPS


@pytest.mark.parametrize("function", ["exp", "exp2"])
def test_exponentials_at_their_ends(tier: optimized.Tier, function: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, -inf, inf, -1e30, 1e30, nan, -200.0, 200.0])
    got = run(tier, function, x)
    assert got[:6].tolist() == [1, 1, 0, inf, 0, inf] and got[6].isnan() and got[7:].tolist() == [0, inf]
    assert (run(tier, function, spread(-300.0, -127.0)) <= 2.0**-126).all()


def test_tanh_has_a_small_absolute_error(tier: optimized.Tier) -> None:
    x = torch.cat([spread(-30.0, 30.0), torch.tensor([float("inf"), -float("inf"), 0.0, 1e30, -1e30])])
    assert ((run(tier, "tanh", x).double() - torch.tanh(x.double())).abs() <= EPS).all()
    assert run(tier, "tanh", torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_value_widens_exactly(tier: optimized.Tier, dtype: torch.dtype) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)
    got, truth = run(tier, "identity", x), x.float()
    assert torch.equal(got.isnan(), truth.isnan())
    assert torch.equal(got.view(torch.int32)[~truth.isnan()], truth.view(torch.int32)[~truth.isnan()])
    back = run(tier, "identity", x, widen=False)
    same = (back.view(torch.uint16) == x.view(torch.uint16)) | (back.isnan() & x.isnan())
    flushed = (dtype == torch.bfloat16) & (x.float().abs() < 2.0**-126) & (back == 0)
    assert (same | flushed).all()


def test_transpose(tier: optimized.Tier) -> None:
    x = torch.arange(512.0)
    assert torch.equal(run(tier, "transpose", x), x.view(2, 16, 16).transpose(1, 2).reshape(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_results_round_to_nearest_even(tier: optimized.Tier, dtype: torch.dtype) -> None:
    """exp of a 16-bit value, rounded, against the same float32 result rounded by torch: ties and overflow included."""
    rng = np.random.Generator(np.random.Philox(3))
    x = torch.from_numpy(rng.uniform(-24, 24, 100_000).astype(np.float32)).to(dtype)
    got, truth = run(tier, "exp", x, widen=False), run(tier, "exp", x).to(dtype)
    assert torch.equal(got.view(torch.int16), truth.view(torch.int16))


def test_thirty_two_at_a_time_round_to_nearest_even(tier: optimized.Tier) -> None:
    """Any bits, so numbers and NaNs of all payloads, of which some would round to infinity or to zero."""
    rng = np.random.Generator(np.random.Philox(5))
    bits = rng.integers(0, 2**32, 32_000, dtype=np.uint64).astype(np.uint32)
    blocks = bits.reshape(-1, 32)
    blocks[::3] &= 0xBFFFFFFF  # no NaN
    blocks[1::3, 5] |= 0x7F800001
    blocks[1::6, 17] = 0x7FFFFFFF
    x = torch.from_numpy(bits.view(np.float32).copy())
    got, truth = run(tier, "round_wide", x), x.bfloat16().float()
    assert torch.equal(got.isnan(), truth.isnan())
    numbers = ~truth.isnan() & (x.abs() >= 2.0**-126)  # smaller ones a tier may flush
    assert torch.equal(got[numbers], truth[numbers])


@pytest.mark.parametrize("function", ["transpose", "round_wide"])
def test_what_takes_floats_alone_refuses_others(tier: optimized.Tier, function: str) -> None:
    with optimized.use_tier(tier.name), pytest.raises(RuntimeError, match=r"^TypeError: x has dtype bfloat16"):
        torch.ops.kernelpair._vec_function(function, torch.zeros(256, dtype=torch.bfloat16), False)
