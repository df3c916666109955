"""Tiles: software has the bits of the hardware, and both have those of the documented arithmetic, as dot products have."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import optimized

TILE_TIERS = [tier for tier in optimized.tiers() if tier.products in ("tile_registers", "soft_tiles")]
MIN_NORMAL = Fraction(1, 2**126)


def bf16_values(rng: np.random.Generator, kind: str, *shape: int) -> torch.Tensor:
    """Random bf16 values: `plain`, `wide` in magnitude, or any `bits` that are not NaN (denormals, infinities, zeros)."""
    if kind == "plain":
        return torch.from_numpy(rng.standard_normal(shape, np.float32)).bfloat16()
    if kind == "wide":
        scale = np.exp2(rng.integers(-60, 60, shape))
        return torch.from_numpy((rng.standard_normal(shape) * scale).astype(np.float32)).bfloat16()
    bits = rng.integers(0, 2**16, shape, dtype=np.uint16)
    bits = np.where((bits & 0x7F80) == 0x7F80, bits & 0xFF80, bits)
    bits = np.where(rng.random(shape) < 0.9, bits & 0xBFFF, bits)  # mostly below 2: sums stay finite
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def operands(seed: int, kind: str, M: int, N: int, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.Generator(np.random.Philox(seed))
    a, b = bf16_values(rng, kind, M, 32 * steps), bf16_values(rng, kind, steps, 16, N, 2)
    return a, b, bf16_values(rng, kind, M, N).float()


def tile_product(tier: str, *tensors: torch.Tensor) -> torch.Tensor:
    with optimized.use_tier(tier):
        return torch.ops.kernelpair._tile_product(*tensors)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of float32 values; all NaNs alike, for their payloads may differ."""
    return torch.where(values.isnan(), torch.full_like(values, float("nan")), values).view(torch.int32)


def rounded(value: Fraction) -> Fraction:
    """Round to float32, to nearest even, denormals to zero; for values that do not overflow."""
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    ulp = Fraction(2) ** (exponent - 24)
    while abs(value) / ulp >= 2**24:
        ulp *= 2
    while abs(value) / ulp < 2**23:
        ulp /= 2
    result = round(value / ulp) * ulp
    return result if abs(result) >= MIN_NORMAL else Fraction(0)


def documented(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c + a b in exact arithmetic with the roundings that the instruction set manual states; one step of 32."""

    def exact(value: torch.Tensor) -> Fraction:
        return rounded(Fraction(value.item()))

    out = torch.empty_like(c)
    for m in range(c.shape[0]):
        for n in range(c.shape[1]):
            even = odd = Fraction(0)
            for k in range(16):
                even = rounded(exact(a[m, 2 * k]) * exact(b[0, k, n, 0]) + even)
                odd = rounded(exact(a[m, 2 * k + 1]) * exact(b[0, k, n, 1]) + odd)
            out[m, n] = float(rounded(exact(c[m, n]) + rounded(even + odd)))
    return out


@pytest.mark.parametrize("tier", TILE_TIERS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "wide", "bits"])
def test_tiles_follow_the_documented_arithmetic(tier: optimized.Tier, kind: str) -> None:
    if not tier.runnable:
        pytest.skip(tier.reason)
    a, b, c = (x.clamp(-(2.0**60), 2.0**60) for x in operands(7, kind, 5, 7, 1))  # exact fractions have no infinity
    assert torch.equal(tile_product(tier.name, a, b, c), documented(a, b, c))


def as_dot_products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The same with the roundings of VDPBF16PS: the odd product of each pair joins the sum first, then the even one."""

    def exact(value: torch.Tensor) -> Fraction:
        return rounded(Fraction(value.item()))

    out = torch.empty_like(c)
    for m in range(c.shape[0]):
        for n in range(c.shape[1]):
            total = exact(c[m, n])
            for k in range(16 * len(b)):
                step, pair = divmod(k, 16)
                total = rounded(exact(a[m, 2 * k + 1]) * exact(b[step, pair, n, 1]) + total)
                total = rounded(exact(a[m, 2 * k]) * exact(b[step, pair, n, 0]) + total)
            out[m, n] = float(total)
    return out


@pytest.mark.parametrize("kind", ["plain", "wide", "bits"])
@pytest.mark.parametrize("shape", [(5, 7, 1), (16, 3, 2), (1, 16, 1), (11, 2, 1)], ids=str)
def test_dot_products_follow_the_documented_arithmetic(kind: str, shape: tuple[int, int, int]) -> None:
    tier = next(tier for tier in optimized.tiers() if tier.products == "dots")
    if not tier.runnable:
        pytest.skip(tier.reason)
    a, b, c = (x.clamp(-(2.0**60), 2.0**60) for x in operands(7, kind, *shape))
    assert torch.equal(tile_product(tier.name, a, b, c), as_dot_products(a, b, c))


@pytest.mark.parametrize("kind", ["plain", "wide", "bits"])
@pytest.mark.parametrize("shape", [(16, 16, 1), (16, 16, 40), (1, 16, 3), (5, 7, 2), (16, 1, 1)], ids=str)
def test_software_tiles_have_the_bits_of_the_hardware(kind: str, shape: tuple[int, int, int]) -> None:
    hardware, software = TILE_TIERS
    if not hardware.runnable:
        pytest.skip(hardware.reason)
    for seed in range(20):
        tensors = operands(seed, kind, *shape)
        assert torch.equal(bits(tile_product(hardware.name, *tensors)), bits(tile_product(software.name, *tensors)))


@pytest.mark.parametrize("tier", TILE_TIERS, ids=str)
def test_infinities_and_nans_pass_through_tiles(tier: optimized.Tier) -> None:
    if not tier.runnable:
        pytest.skip(tier.reason)
    a, b, c = torch.ones(2, 32).bfloat16(), torch.ones(1, 16, 3, 2).bfloat16(), torch.zeros(2, 3)
    a[0, 3] = float("inf")
    b[0, 4, 2, 1] = float("nan")
    out = tile_product(tier.name, a, b, c)
    assert out[0, :2].tolist() == [float("inf")] * 2 and out[1, :2].tolist() == [32.0, 32.0] and out[:, 2].isnan().all()
