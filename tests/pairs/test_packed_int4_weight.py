"""The packed weight of four bits as an object, its Python face, and codes by hand, alike in reference and kernel."""

from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import pytest
import torch

import optimized.int4_linear
import reference.int4_codes
import reference.int4_linear

BOTH = pytest.mark.parametrize("side", [reference.int4_linear, optimized.int4_linear], ids=["reference", "optimized"])
CONVERTERS = pytest.mark.parametrize("side", [reference.int4_codes, optimized.int4_linear], ids=["reference", "optimized"])


def codes_of(N: int, K: int) -> torch.Tensor:
    """All codes."""
    return torch.randint(0, 16, (N, K), dtype=torch.uint8)


@BOTH
def test_it_is_immutable(side: ModuleType) -> None:
    codes, scales, zeros = codes_of(7, 33), torch.rand(7, 5), codes_of(7, 5) + 1
    packed = side.PackedInt4Weight.pack(codes, scales, zeros, 8)
    assert (packed.N, packed.K, packed.layout, packed.group_size) == (7, 33, "nib2-n32k32", 8)
    before = [tensor.clone() for tensor in (codes, scales, zeros)]
    scales.zero_()
    zeros.zero_()
    assert all(torch.equal(got, expected) for got, expected in zip(packed.unpack(), before))
    assert not isinstance(packed, torch.Tensor)
    with pytest.raises(FrozenInstanceError):
        packed.N = 8


@BOTH
def test_only_a_packed_weight_is_taken(side: ModuleType) -> None:
    packed = side.PackedInt4Weight.pack(codes_of(4, 4), torch.ones(4, 1), None, -1)
    for wrong in (codes_of(4, 4), packed.data, None):
        with pytest.raises(TypeError, match="packed must be a PackedInt4Weight"):
            side.int4_linear(torch.ones(1, 4), wrong)
    with pytest.raises(ValueError, match="packed has the unknown layout 'vnni2-n32k32'"):
        side.int4_linear(torch.ones(1, 4), replace(packed, layout="vnni2-n32k32"))


@BOTH
def test_one_group_is_as_long_as_the_row(side: ModuleType) -> None:
    packed = side.PackedInt4Weight.pack(codes_of(4, 37), torch.ones(4, 1), None, -1)
    assert packed.group_size == 37 and packed.unpack()[2].tolist() == [[8]] * 4


@BOTH
@pytest.mark.parametrize("activation", ["x", "int8"])
def test_a_group_may_be_larger_than_any_row(side: ModuleType, activation: str) -> None:
    packed = side.PackedInt4Weight.pack(codes_of(1, 1) * 0 + 11, torch.ones(1, 1), None, 10**12)
    assert side.int4_linear(torch.full((1, 1), 127.0), packed, activation=activation).tolist() == [[3 * 127.0]]


@BOTH
@pytest.mark.parametrize("activation", ["x", "int8"])
def test_every_code_at_both_places_of_a_byte(side: ModuleType, activation: str) -> None:
    """Read by rows with a single 127, which int8 holds exactly, under all zero points."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(17, 2).roll(1, -1)
    zeros = torch.arange(17, dtype=torch.uint8)[:, None]
    packed = side.PackedInt4Weight.pack(codes, torch.ones(17, 1), zeros, 32)
    out = side.int4_linear(torch.eye(32) * 127, packed, activation=activation)
    assert torch.equal(out, 127 * (codes.float() - zeros).T)


@BOTH
def test_many_dimensions(side: ModuleType) -> None:
    """More than a kernel knows, in any order: the weight 1 reads x."""
    packed = side.PackedInt4Weight.pack(torch.eye(5, 4, dtype=torch.uint8) + 8, torch.ones(5, 1), None, -1)
    x = torch.arange(4 * 24.0).reshape(2, 1, 2, 1, 2, 1, 3, 4).transpose(0, 2)
    assert torch.equal(side.int4_linear(x, packed)[..., :4], x)


def test_both_sides_pack_alike() -> None:
    codes, scales = codes_of(70, 130).t(), torch.rand(130, 2)
    sides = (optimized.int4_linear, reference.int4_linear)
    ours, theirs = (side.PackedInt4Weight.pack(codes, scales, None, 64) for side in sides)
    assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("data", "scales", "zeros"))
    assert ours.layout == theirs.layout


@CONVERTERS
def test_gptq_by_hand(side: ModuleType) -> None:
    """The word's last nibble is its sign; a zero point of 15 stands for 16."""
    qweight = torch.zeros(1, 8, dtype=torch.int32)
    qweight[0, 3] = 0x87654321 - 2**32
    qzeros = torch.tensor([[0xF0000007 - 2**32]], dtype=torch.int32)
    codes, zeros = side.int4_from_gptq(qweight, qzeros)
    assert codes[3].tolist() == [1, 2, 3, 4, 5, 6, 7, 8] and int(codes.sum()) == 36
    assert zeros.T.tolist() == [[8, 1, 1, 1, 1, 1, 1, 16]]
    assert side.int4_from_gptq(qweight, qzeros, 0)[1].T.tolist() == [[7, 0, 0, 0, 0, 0, 0, 15]]


@CONVERTERS
def test_awq_by_hand(side: ModuleType) -> None:
    qweight = torch.tensor([[0x75316420]], dtype=torch.int32)
    qzeros = torch.tensor([[0xF0000007 - 2**32]], dtype=torch.int32)
    codes, zeros = side.int4_from_awq(qweight, qzeros)
    assert codes.T.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert zeros.T.tolist() == [[7, 0, 0, 0, 0, 0, 0, 15]]
