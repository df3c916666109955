"""PackedWeight: what the wrapper promises beyond the operator, alike in reference and kernel."""

import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

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


class Layer(torch.nn.Module):
    """How an engine keeps a packed weight: buffers of a module, and a call of the operator that torch.compile sees through."""

    def __init__(self, data: torch.Tensor, sizes: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", data)
        self.register_buffer("weight_sizes", sizes)
        self.N, self.K = sizes.tolist()
        self.product = optimized.operator("packed_linear").raw  # torch.ops.kernelpair.packed_linear, the library loaded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.product(x, self.weight, self.N, self.K)
        return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("N", "K"), [(7, 33), (64, 32), (1, 1)])
def test_it_is_two_plain_tensors(side: ModuleType, dtype: torch.dtype, N: int, K: int) -> None:
    weight = torch.randn(N, K).to(dtype)
    packed = side.PackedWeight.pack(weight)
    file = io.BytesIO()
    torch.save(Layer(**packed.tensors()).state_dict(), file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    again = side.PackedWeight.from_tensors(kept["weight"], kept["weight_sizes"])
    assert (again.N, again.K, again.layout, again.dtype) == (N, K, packed.layout, dtype)
    assert torch.equal(again.unpack(), weight)
    assert again.data is kept["weight"]
    assert packed.tensors()["data"] is packed.data


def test_a_compiled_layer_holds_plain_tensors(side: ModuleType) -> None:
    packed, x = side.PackedWeight.pack(torch.randn(40, 33, dtype=torch.bfloat16)), torch.randn(3, 33, dtype=torch.bfloat16)
    layer = Layer(**packed.tensors())
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), optimized.packed_linear.packed_linear(x, packed))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda data, sizes: (data, sizes + 32), ValueError, r"data must have shape \[2, 3, .* for sizes \[39, 65\], got \[1, 2"),
        (lambda data, sizes: (data, sizes - sizes), ValueError, r"sizes must hold two numbers from 1 on, got \[0, 0\]"),
        (lambda data, sizes: (data, sizes[:1]), ValueError, "sizes must hold two numbers"),
        (lambda data, sizes: (data, sizes.float()), TypeError, "sizes must be a tensor of int32 or int64, got torch.float32"),
        (lambda data, sizes: (data, (7, 33)), TypeError, "sizes must be a tensor of int32 or int64, got tuple"),
        (lambda data, sizes: (data.double(), sizes), TypeError, "data must be a tensor of bfloat16, .* got torch.float64"),
        (lambda data, sizes: (data.float(), sizes), ValueError, "data must have shape"),
        (lambda data, sizes: (data.mT.contiguous().mT, sizes), ValueError, "data must be contiguous"),
        (lambda data, sizes: (None, sizes), TypeError, "data must be a tensor .* got NoneType"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_refused(side: ModuleType, change: Callable[..., Any], error: type[Exception], says: str) -> None:
    kept = side.PackedWeight.pack(torch.randn(7, 33, dtype=torch.bfloat16)).tensors()
    with pytest.raises(error, match=says):
        side.PackedWeight.from_tensors(*change(**kept))
