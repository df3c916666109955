"""Packed weights of int8, float8 and four bits as plain tensors: through a file and back, and what is refused."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import optimized.fp8_linear
import optimized.int4_linear
import optimized.int8_linear
import reference.fp8_linear
import reference.int4_linear
import reference.int8_linear

N, K = 34, 70


@dataclass(frozen=True)
class Kind:
    """The linear layer of one kind, as the reference or the kernels have it."""

    kind: str
    module: ModuleType

    @property
    def weight(self) -> Any:
        """The class of its packed weight."""
        return getattr(self.module, f"Packed{self.kind.capitalize()}Weight")

    def packed(self) -> Any:
        bytes_of = torch.randint(0, 256, (N, K), dtype=torch.uint8)
        if self.kind == "int8":
            return self.weight.pack(bytes_of.view(torch.int8))
        if self.kind == "fp8":
            return self.weight.pack((bytes_of & 0xBF).view(torch.float8_e4m3fn), torch.rand(5, 10), (8, 7))
        return self.weight.pack(bytes_of % 16, torch.rand(N, 9), bytes_of[:, :9] % 17, 8)

    def __call__(self, packed: Any) -> Tensor:
        scale = (torch.ones(N),) if self.kind == "int8" else ()
        out: Tensor = getattr(self.module, f"{self.kind}_linear")(torch.eye(K), packed, *scale)
        return out


SIDES = [
    Kind("int8", reference.int8_linear), Kind("int8", optimized.int8_linear), Kind("fp8", reference.fp8_linear),
    Kind("fp8", optimized.fp8_linear), Kind("int4", reference.int4_linear), Kind("int4", optimized.int4_linear),
]  # fmt: skip
BOTH_OF_ALL = pytest.mark.parametrize("layer", SIDES, ids=lambda layer: layer.module.__name__)


@BOTH_OF_ALL
def test_a_file_of_its_tensors_makes_it_again(layer: Kind) -> None:
    packed, file = layer.packed(), io.BytesIO()
    torch.save(packed.tensors(), file)
    file.seek(0)
    again = layer.weight.from_tensors(**torch.load(file, weights_only=True))
    assert type(again) is type(packed)
    for name, value in vars(packed).items():
        kept = getattr(again, name)
        assert torch.equal(kept, value) if isinstance(value, Tensor) else kept == value, name
    assert torch.equal(layer(again), layer(packed))


@BOTH_OF_ALL
def test_nothing_is_copied(layer: Kind) -> None:
    packed = layer.packed()
    tensors = packed.tensors()
    again = layer.weight.from_tensors(**tensors)
    for name in tensors.keys() - {"sizes", "blocks"}:
        assert getattr(again, name) is tensors[name] is getattr(packed, name)


WRONG: list[tuple[str, Callable[[Tensor], Any], type[Exception], str]] = [
    ("sizes", lambda sizes: sizes + 32, ValueError, r"data must have shape \[3, .* for sizes \[66, 102\], got \[2, "),
    ("sizes", lambda sizes: sizes * 0, ValueError, r"sizes must hold two numbers from 1 on, got \[0, 0\]"),
    ("sizes", lambda sizes: (N, K), TypeError, "sizes must be a tensor of int32 or int64, got tuple"),
    ("data", lambda data: data.float(), TypeError, r"data must be a tensor of torch\.u?int8, got torch.float32"),
    ("data", lambda data: None, TypeError, r"data must be a tensor of torch\.u?int8, got NoneType"),
    ("data", lambda data: data[:1], ValueError, r"data must have shape \[2, .*, got \[1, "),
    ("data", lambda data: data.mT.contiguous().mT, ValueError, "data must be contiguous, got strides"),
    ("sums", lambda sums: sums[1:], ValueError, r"sums must have shape \[34\], got \[33\]"),
    ("sums", lambda sums: sums.long(), TypeError, r"sums must be a tensor of torch.int32, got torch.int64"),
    ("scales", lambda scales: scales[1:], ValueError, r"scales must have shape \[\d+, .*, got \["),
    ("scales", lambda scales: scales.double(), TypeError, "scales must be a tensor of torch.float32, got torch.float64"),
    ("zeros", lambda zeros: zeros[:, :1], ValueError, r"zeros must have shape \[2, 9, 32\], got \[2, 1, 32\]"),
    ("zeros", lambda zeros: zeros.view(torch.int8), TypeError, "zeros must be a tensor of torch.uint8, got torch.int8"),
    ("blocks", lambda blocks: blocks[:1], ValueError, "blocks must hold two numbers from 1 on"),
    ("blocks", lambda blocks: blocks * torch.tensor([1, 2]), ValueError, "scales must have shape"),
    ("blocks", lambda blocks: blocks + 1, ValueError, "scales must have shape|blocks must begin with 1, .* got \\[2, 9\\]"),
]


@BOTH_OF_ALL
def test_wrong_tensors_are_refused(layer: Kind) -> None:
    tensors = layer.packed().tensors()
    tried = [wrong for wrong in WRONG if wrong[0] in tensors]
    assert {name for name, *_ in tried} == tensors.keys()
    for name, change, error, says in tried:
        with pytest.raises(error, match=says):
            layer.weight.from_tensors(**tensors | {name: change(tensors[name])})
