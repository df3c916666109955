"""The packed int8 weight as an object, and its Python face, alike in reference and kernel."""

from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import pytest
import torch

import optimized.int8_linear
import reference.int8_linear

BOTH = pytest.mark.parametrize("side", [reference.int8_linear, optimized.int8_linear], ids=["reference", "optimized"])


def weight_of(N: int, K: int) -> torch.Tensor:
    return torch.randint(-128, 128, (N, K), dtype=torch.int8)


@BOTH
def test_it_is_immutable(side: ModuleType) -> None:
    weight = weight_of(7, 33)
    packed = side.PackedInt8Weight.pack(weight)
    assert (packed.N, packed.K, packed.layout) == (7, 33, "vnni4-n32k64")
    assert packed.sums.tolist() == weight.sum(-1).tolist() and torch.equal(packed.unpack(), weight)
    assert not isinstance(packed, torch.Tensor)
    with pytest.raises(FrozenInstanceError):
        packed.N = 8


@BOTH
def test_only_a_packed_weight_is_taken(side: ModuleType) -> None:
    packed = side.PackedInt8Weight.pack(weight_of(4, 4))
    q, ones = torch.ones(1, 4, dtype=torch.int8), torch.ones(4)
    for wrong in (weight_of(4, 4), packed.data, None):
        with pytest.raises(TypeError, match="packed must be a PackedInt8Weight"):
            side.int8_linear(torch.ones(1, 4), wrong, ones)
        with pytest.raises(TypeError, match="packed must be a PackedInt8Weight"):
            side.int8_matmul(q, ones[:1], None, wrong, ones, None, torch.float32)


@BOTH
def test_another_layout_is_refused(side: ModuleType) -> None:
    packed = replace(side.PackedInt8Weight.pack(weight_of(4, 4)), layout="vnni2-n32k32")
    with pytest.raises(ValueError, match="packed has the unknown layout 'vnni2-n32k32'"):
        side.int8_linear(torch.ones(1, 4), packed, torch.ones(4))


@BOTH
def test_out_dtype_is_a_float_dtype(side: ModuleType) -> None:
    packed = side.PackedInt8Weight.pack(weight_of(4, 4))
    q, ones = torch.ones(1, 4, dtype=torch.int8), torch.ones(4)
    for wrong in (torch.int32, "bfloat16", None):
        with pytest.raises(TypeError, match="out_dtype"):
            side.int8_matmul(q, ones[:1], None, packed, ones, None, wrong)


@BOTH
def test_many_dimensions(side: ModuleType) -> None:
    """More than a kernel knows, in any order: rows with one value each, which the quantizer keeps."""
    packed = side.PackedInt8Weight.pack(torch.eye(5, 4, dtype=torch.int8))
    x = torch.eye(4).repeat(6, 1).reshape(2, 1, 2, 1, 2, 1, 3, 4).transpose(0, 2) * 127
    assert torch.equal(side.int8_linear(x, packed, torch.ones(5))[..., :4], x)
    with pytest.raises(ValueError, match="x must be dense in its last dimension"):
        side.int8_linear(torch.ones(2, 1, 1, 1, 1, 8, 3).transpose(-1, -2)[..., :4], packed, torch.ones(5))


def test_both_sides_pack_alike() -> None:
    weight = weight_of(70, 130).t()
    ours, theirs = (side.PackedInt8Weight.pack(weight) for side in (optimized.int8_linear, reference.int8_linear))
    assert torch.equal(ours.data, theirs.data) and torch.equal(ours.sums, theirs.sums) and ours.layout == theirs.layout


@pytest.mark.parametrize("tier", [tier for tier in optimized.tiers() if tier.runnable], ids=str)
@pytest.mark.parametrize("M", [1, 5, 17])
def test_the_longest_sums_neither_saturate_nor_overflow(tier: optimized.Tier, M: int) -> None:
    """K = 65,536 of 127 and -128, with zero points that make each difference as large as it gets."""
    K = 65_536
    packed = optimized.int8_linear.PackedInt8Weight.pack(torch.full((3, K), -128, dtype=torch.int8))
    one = torch.ones(M)
    with optimized.use_tier(tier.name):
        for byte, point in ((127, -128), (-128, 127), (127, None), (-128, None)):
            q = torch.full((M, K), byte, dtype=torch.int8)
            azp = None if point is None else torch.full((M,), point, dtype=torch.int32)
            out = optimized.int8_linear.int8_matmul(q, one, azp, packed, torch.ones(3), None, torch.float32)
            assert (out == float((byte - (point or 0)) * -128 * K)).all()
