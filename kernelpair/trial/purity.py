"""Code that judges may not change its arguments: a bound that scales its keys in place makes the next bound wrong.

torch counts what it does to a tensor in place, and the count is always looked at. What goes around it (numpy, `.data`, C)
is seen by a copy of every tensor, compared bit for bit after the call, behind a switch: KERNELPAIR_CHECK_PURITY=1.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.runner import HarnessError

SWITCH = "KERNELPAIR_CHECK_PURITY"


def checked() -> bool:
    """Whether the switch is on."""
    return os.environ.get(SWITCH, "") not in ("", "0")


@contextmanager
def unchanged(pair: str, function: str, arguments: Mapping[str, Any], may_change: Collection[str] = ()) -> Iterator[None]:
    """HarnessError naming pair, function and argument if the block changes any tensor in `arguments` in place, and with the
    switch a bit of one, or swaps it for another one. Those in `may_change`, and what shares memory with them, are the function's
    to write."""
    free = {tensor.untyped_storage().data_ptr() for name in may_change for _, tensor in tensors(name, arguments.get(name))}
    given = {
        place: tensor
        for name, value in arguments.items()
        for place, tensor in tensors(name, value)
        if tensor.untyped_storage().data_ptr() not in free
    }
    if not checked():
        counts = {place: tensor._version for place, tensor in given.items() if not tensor.is_inference()}  # those have no count
        yield
        for place, count in counts.items():
            if given[place]._version != count:
                free_to = f"it may change {', '.join(may_change) or 'none'}"
                raise HarnessError(f"{pair}: {function} changed its argument {place} in place; {free_to}")
        return
    before = {
        place: (tensor, tensor.shape, tensor.stride(), tensor.data_ptr(), _bits(tensor)) for place, tensor in given.items()
    }
    yield
    after = {place: tensor for name, value in arguments.items() for place, tensor in tensors(name, value)}
    for place, (tensor, shape, stride, address, bits) in before.items():
        if after.get(place) is not tensor:
            raise HarnessError(f"{pair}: {function} replaced its argument {place}")
        if (tensor.shape, tensor.stride(), tensor.data_ptr()) != (shape, stride, address):
            raise HarnessError(f"{pair}: {function} changed the shape or place of its argument {place}")
        if not torch.equal(_bits(tensor), bits):
            count = int((_bits(tensor) != bits).sum())
            raise HarnessError(f"{pair}: {function} changed its argument {place}: {count} of {len(bits)} bytes differ")


def tensors(place: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested mappings, sequences and dataclasses, by where it stands."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from tensors(f"{place}.{name}", inner)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from tensors(f"{place}[{i}]", inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(f"{place}.{field.name}", getattr(value, field.name))


def _bits(tensor: Tensor) -> Tensor:
    """A copy of the elements as bytes."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
