"""The packed float8 weight as an object, and its Python face, alike in reference and kernel."""

from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import pytest
import torch

import optimized.fp8_linear
import reference.fp8_linear

BOTH = pytest.mark.parametrize("side", [reference.fp8_linear, optimized.fp8_linear], ids=["reference", "optimized"])
ALL_CODES = torch.arange(256, dtype=torch.uint8)


def weight_of(N: int, K: int) -> torch.Tensor:
    """All finite codes."""
    return torch.randint(0, 0x7F, (N, K), dtype=torch.uint8).view(torch.float8_e4m3fn)


@BOTH
def test_it_is_immutable(side: ModuleType) -> None:
    weight, scales = weight_of(7, 33), torch.rand(3, 5)
    packed = side.PackedFp8Weight.pack(weight, scales, (3, 8))
    assert (packed.N, packed.K, packed.layout, packed.block_size) == (7, 33, "e4m3-vnni2-n32k32", (3, 8))
    assert torch.equal(packed.unpack().view(torch.uint8), weight.view(torch.uint8))
    before = scales.clone()
    scales.zero_()
    assert torch.equal(packed.scales, before) and not isinstance(packed, torch.Tensor)
    with pytest.raises(FrozenInstanceError):
        packed.N = 8


@BOTH
def test_only_a_packed_weight_is_taken(side: ModuleType) -> None:
    packed = side.PackedFp8Weight.pack(weight_of(4, 4), torch.ones(1, 1), (4, 4))
    for wrong in (weight_of(4, 4), packed.data, None):
        with pytest.raises(TypeError, match="packed must be a PackedFp8Weight"):
            side.fp8_linear(torch.ones(1, 4), wrong)
    with pytest.raises(ValueError, match="packed has the unknown layout 'vnni2-n32k32'"):
        side.fp8_linear(torch.ones(1, 4), replace(packed, layout="vnni2-n32k32"))


@BOTH
@pytest.mark.parametrize("block", [(128,), (1, 2, 3)])
def test_blocks_have_two_sizes(side: ModuleType, block: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"block_size must hold two numbers, got \("):
        side.PackedFp8Weight.pack(weight_of(4, 4), torch.ones(1, 1), block)


@BOTH
def test_many_dimensions(side: ModuleType) -> None:
    """More than a kernel knows, in any order: the weight 1 reads x."""
    packed = side.PackedFp8Weight.pack(torch.eye(5, 4).to(torch.float8_e4m3fn), torch.ones(1, 1), (5, 4))
    x = torch.arange(4 * 24.0).reshape(2, 1, 2, 1, 2, 1, 3, 4).transpose(0, 2)
    assert torch.equal(side.fp8_linear(x, packed)[..., :4], x)


def test_both_sides_pack_alike() -> None:
    weight, scales = weight_of(130, 70).t(), torch.rand(2, 1)
    ours, theirs = (side.PackedFp8Weight.pack(weight, scales, (64, 130)) for side in (optimized.fp8_linear, reference.fp8_linear))
    assert torch.equal(ours.data, theirs.data) and torch.equal(ours.scales, theirs.scales) and ours.layout == theirs.layout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_reads_codes_as_torch_does(dtype: torch.dtype) -> None:
    numbers = reference.fp8_linear.fp8_to_float(ALL_CODES.view(torch.float8_e4m3fn), dtype)
    expected = ALL_CODES.view(torch.float8_e4m3fn).to(dtype)
    assert torch.equal(numbers.isnan(), expected.isnan()) and numbers.isnan().sum() == 2
    ours, theirs = numbers.nan_to_num(), expected.nan_to_num()
    assert torch.equal(ours, theirs) and torch.equal(ours.signbit(), theirs.signbit())


@pytest.mark.parametrize("tier", [tier for tier in optimized.tiers() if tier.runnable], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("M", [1, 20])
def test_subnormal_codes_survive_a_processor_that_flushes(tier: optimized.Tier, dtype: torch.dtype, M: int) -> None:
    """Read by rows with a single 1, with subnormal floats taken for zeros as some engines ask for."""
    weight = torch.arange(8, dtype=torch.uint8).repeat(33, 1).view(torch.float8_e4m3fn)
    packed = optimized.fp8_linear.PackedFp8Weight.pack(weight, torch.ones(1, 1), (33, 8))
    x = torch.eye(8, dtype=dtype)[torch.arange(M) % 8]
    assert torch.set_flush_denormal(True)
    try:
        with optimized.use_tier(tier.name):
            out = optimized.fp8_linear.fp8_linear(x, packed)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(out, ((torch.arange(M) % 8)[:, None] / 512).expand(M, 33).to(dtype))
