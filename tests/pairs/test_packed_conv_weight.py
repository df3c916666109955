"""The packed convolution weight as an object: what no operator can tell from its blocks alone."""

from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import pytest
import torch

import optimized.causal_conv1d
import reference.causal_conv1d

BOTH = pytest.mark.parametrize("side", [reference.causal_conv1d, optimized.causal_conv1d], ids=["reference", "optimized"])


@BOTH
def test_it_is_immutable(side: ModuleType) -> None:
    packed = side.PackedConvWeight.pack(torch.ones(3, 4))
    assert (packed.dim, packed.width, packed.dtype) == (3, 4, torch.float32)
    with pytest.raises(FrozenInstanceError):
        packed.width = 3


@BOTH
def test_another_layout_is_refused(side: ModuleType) -> None:
    packed = replace(side.PackedConvWeight.pack(torch.ones(3, 4)), layout="rows")
    with pytest.raises(ValueError, match="layout"):
        side.causal_conv1d_fwd(torch.ones(1, 3, 5), packed, None, None, None, None, None)


@BOTH
def test_a_channel_count_of_the_same_blocks_is_refused(side: ModuleType) -> None:
    packed = side.PackedConvWeight.pack(torch.ones(3, 4))
    with pytest.raises(ValueError, match="channels"):
        side.causal_conv1d_update(torch.ones(2, 5), torch.zeros(2, 5, 3), packed, None, None)


@BOTH
def test_it_does_not_enter_an_unpacked_convolution(side: ModuleType) -> None:
    packed = side.PackedConvWeight.pack(torch.ones(3, 4))
    with pytest.raises(TypeError):
        torch.nn.functional.conv1d(torch.ones(1, 3, 5), packed, groups=3)


def test_both_sides_pack_alike() -> None:
    weight = torch.randn(70, 1, 3, dtype=torch.bfloat16)
    ours, theirs = (side.PackedConvWeight.pack(weight) for side in (optimized.causal_conv1d, reference.causal_conv1d))
    assert torch.equal(ours.data, theirs.data) and ours.layout == theirs.layout
    assert torch.equal(ours.unpack(), weight[:, 0])


@BOTH
@pytest.mark.parametrize("width", [2, 3, 4])
def test_it_is_two_plain_tensors(side: ModuleType, width: int) -> None:
    weight = torch.randn(33, width, dtype=torch.bfloat16)
    packed = side.PackedConvWeight.pack(weight)
    again = side.PackedConvWeight.from_tensors(**packed.tensors())
    assert (again.dim, again.width, again.layout) == (33, width, packed.layout)
    assert again.data is packed.data
    assert torch.equal(again.unpack(), weight)


@BOTH
def test_wrong_tensors_are_refused(side: ModuleType) -> None:
    kept = side.PackedConvWeight.pack(torch.randn(33, 4)).tensors()
    for sizes, says in (([65, 4], "data must have shape"), ([33, 2], "data must have shape"), ([33, 5], "a width of 2, 3 or 4")):
        with pytest.raises(ValueError, match=says):
            side.PackedConvWeight.from_tensors(kept["data"], torch.tensor(sizes))
