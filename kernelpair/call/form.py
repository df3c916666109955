"""What tensors of a call are beside their values: how they lie in memory, and whether they are plain."""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelpair.call.layout import reach

STORAGE_TIMES, STORAGE_BYTES = 8, 1 << 16  # more than so many times its size and so many bytes is too much for a result to hold
FORM = ("dtype", "requires_grad")


class Shape(NamedTuple):
    """What a call may not change of an argument beside its elements."""

    place: tuple[int, tuple[int, ...], tuple[int, ...]]
    dtype: torch.dtype
    requires_grad: bool
    storage: int

    def reformed(self, now: "Shape") -> str:
        """Which of dtype, requires_grad and storage have changed, in words; empty if none has."""
        changed = [f"its {name} is {new}, was {was}" for name, was, new in zip(FORM, self[1:3], now[1:3]) if was != new]
        return "; ".join([*changed, *(["it has another storage"] if self.storage != now.storage else [])])


def shape_of(tensor: Tensor) -> Shape:
    """How it lies in memory now, and its form."""
    place = tensor.data_ptr(), tensor.shape, tensor.stride()
    return Shape(place, tensor.dtype, tensor.requires_grad, tensor.untyped_storage().nbytes())


def bits_of(tensor: Tensor) -> bytes:
    """Its elements as they lie in memory."""
    span = reach(tensor.shape, tensor.stride()) * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), span)


def form_of(value: Tensor) -> str:
    """What sets a result apart from a plain tensor of its size; empty if nothing does."""
    if type(value) is not Tensor:
        return f"is a {type(value).__name__}, a subclass of Tensor"
    flags = {"requires_grad": value.requires_grad, "its conj bit": value.is_conj(), "its neg bit": value.is_neg()}
    if any(flags.values()):
        return f"has {' and '.join(name for name, holds in flags.items() if holds)} set"
    held, needed = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    too_much = held > STORAGE_TIMES * needed + STORAGE_BYTES
    return f"has {needed} bytes, but keeps a storage that is much larger alive" if too_much else ""


def meet(first: Tensor, second: Tensor) -> bool:
    """Whether the ranges of addresses from the first to the last element of each have a byte in common."""
    ends = [tensor.data_ptr() + reach(tensor.shape, tensor.stride()) * tensor.element_size() for tensor in (first, second)]
    return max(first.data_ptr(), second.data_ptr()) < min(ends)


def aliased(value: Tensor, arguments: Mapping[str, Any]) -> str:
    """The argument whose elements the result begins among; of one that lies elsewhere in the arena, the first argument."""
    tensors = {name: tensor for name, tensor in arguments.items() if isinstance(tensor, Tensor) and tensor.numel()}
    address = value.untyped_storage().data_ptr()
    sharing = {name: tensor for name, tensor in tensors.items() if tensor.untyped_storage().data_ptr() == address}
    if not value.numel():
        return ""
    for name, tensor in tensors.items():  # whatever storage says that it holds these bytes
        span = reach(tensor.shape, tensor.stride()) * tensor.element_size()
        if 0 <= value.data_ptr() - tensor.data_ptr() < span:
            return name
    return next(iter(sharing), "")
