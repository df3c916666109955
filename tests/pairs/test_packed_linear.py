"""PackedWeight: what the wrapper promises beyond the operator, alike in reference and kernel."""

from types import ModuleType

import pytest
import torch

import optimized
import optimized.packed_linear
import reference.packed_linear

SIDES = [reference.packed_linear, optimized.packed_linear]
pytestmark = pytest.mark.parametrize("side", SIDES, ids=["reference", "optimized"])


def test_a_packed_weight_knows_itself(side: ModuleType) -> None:
    weight = torch.randn(7, 33, dtype=torch.bfloat16)
    packed = side.PackedWeight.pack(weight)
    assert (packed.N, packed.K, packed.dtype, packed.layout) == (7, 33, torch.bfloat16, "vnni2-n32k32")
    assert side.PackedWeight.pack(weight.float()).layout == "f32-n32k32"
    assert torch.equal(packed.data, SIDES[0].PackedWeight.pack(weight).data)
    assert not isinstance(packed, torch.Tensor)
    with pytest.raises(AttributeError):
        packed.N = 8


def test_only_a_packed_weight_is_taken(side: ModuleType) -> None:
    weight = torch.randn(4, 4)
    for wrong in (weight, side.PackedWeight.pack(weight).data, None):
        with pytest.raises(TypeError, match="packed must be a PackedWeight"):
            side.packed_linear(torch.randn(1, 4), wrong)


def test_an_unknown_layout_is_refused(side: ModuleType) -> None:
    packed = side.PackedWeight.pack(torch.randn(4, 4))
    with pytest.raises(ValueError, match="packed has the unknown layout 'vnni4-n64k64'"):
        side.packed_linear(torch.randn(1, 4), side.PackedWeight(packed.data, "vnni4-n64k64", 4, 4))


def test_a_tensor_that_is_not_packed_cannot_be_unpacked(side: ModuleType) -> None:
    unpack = optimized.operator("unpack_linear_weight")
    if side is reference.packed_linear:
        unpack = side.unpack_linear_weight
    for wrong in (torch.randn(4, 4), torch.randn(1, 1, 2, 16, 16, 2)):
        with pytest.raises(ValueError, match="packed_weight"):
            unpack(wrong, 4, 4)


def test_many_dimensions(side: ModuleType) -> None:
    packed = side.PackedWeight.pack(torch.eye(5, 4))
    x = torch.randn(2, 1, 2, 1, 2, 1, 3, 4).transpose(0, 2)
    assert torch.equal(side.packed_linear(x, packed)[..., :4], x)
