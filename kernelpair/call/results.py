"""What a call returned, on its way to the judge: tensors as copies in the arena, plain values as they are, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.form import aliased, form_of
from kernelpair.call.layout import reach
from kernelpair.call.memory import Arena, Placed
from kernelpair.call.torch_memory import written_around

MOST_BYTES = 4 << 30  # of a result, whose copy takes as much memory; no contract has one near it
ALIGNMENT = 64  # of a copy
MOST_BITS = 1 << 12  # of a whole number; Python refuses to print those of many more
PLAIN: Mapping[type, Callable[[Any], Any]] = {
    bool: bool, int: int.__int__, float: float.__float__, str: str.__str__, type(None): lambda none: None,
}  # fmt: skip
"""Types of plain values -> the value without what a subclass adds. The judge gets nothing else: to read an object is to run its
class."""


@dataclass
class Returned:
    """A result tensor: a contiguous copy in the arena, and how the original lay in memory."""

    copy: Placed
    strides: tuple[int, ...]
    aliases: str = ""
    """The argument whose memory it shares, which no contract allows."""
    form: str = ""
    """What it has that a plain tensor of its size does not have."""
    around: str = ""
    """Which bytes around its memory were written."""


def named_results(result: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The results of a call by name: of None, one value, a tuple, or a mapping. None in a tuple is no result."""
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, tuple) and len(names) == 1:
        count = f"{len(result)} value{'' if len(result) == 1 else 's'}"
        raise TypeError(f"the call returned a tuple of {count}, the contract names one value: {names[0]}")
    values = result if isinstance(result, tuple) else (result,)
    if len(values) != len(names):
        count = f"{len(values)} value{'' if len(values) == 1 else 's'}"
        raise TypeError(f"the call returned {count}, the contract names {len(names)}: {', '.join(names)}")
    return {name: value for name, value in zip(names, values) if value is not None}


def collected(
    named: Mapping[str, Any], arguments: Mapping[str, Any], arena: Arena, at: int
) -> tuple[dict[str, Any], dict[str, Tensor], int]:
    """Results by name, tensors copied into the arena from `at` on; the tensors themselves; and where the next one may go.
    TypeError or MemoryError for what is no result of any contract."""
    results: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor may say anything of itself
        for name, value in named.items():
            if type(name) is not str:
                raise TypeError(f"the call returned a mapping with a {type(name).__name__} among its names")
            if not isinstance(value, Tensor):
                results[name] = _plain(name, value)
                continue
            start = -(-at // ALIGNMENT) * ALIGNMENT
            at = start + _size(name, value, arena.limit - start)
            sizes = tuple(value.shape)
            copy = Placed(value.dtype, start, sizes, tuple(torch.empty(sizes, device="meta").stride()))
            arena.view(copy).copy_(value.detach())  # else all views of the arena require a gradient like it
            around = written_around(value)
            results[name] = Returned(copy, tuple(value.stride()), aliased(value, arguments), form_of(value), around)
            tensors[name] = value
    return results, tensors, at


def _size(name: str, value: Tensor, room: int) -> int:
    """The bytes of a tensor that can be read. TypeError or MemoryError where it cannot."""
    if value.device.type != "cpu" or value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else f"{value.layout} on {value.device}"
        raise TypeError(f"result {name} is no dense tensor on the CPU, but {kind}")
    size = value.numel() * value.element_size()
    if size > min(room, MOST_BYTES):
        raise MemoryError(f"result {name} of shape {list(value.shape)} takes {size >> 20} MiB, more than any result may")
    held = value.untyped_storage().nbytes() - value.storage_offset() * value.element_size()
    if reach(value.shape, value.stride()) * value.element_size() > held:
        raise TypeError(f"result {name} of shape {list(value.shape)} reaches beyond its storage, which has been made smaller")
    return size


def _plain(name: str, value: Any) -> Any:
    """A plain value without what subclasses add to it. TypeError for anything else."""
    for kind, bare in PLAIN.items():
        if isinstance(value, kind):
            plain = bare(value)
            if kind is int and (bits := plain.bit_length()) > MOST_BITS:
                raise TypeError(f"result {name} is a whole number of {bits:,} bits, more than any result has")
            return plain
    if isinstance(value, tuple | list):
        items = [_plain(f"an item of {name}", each) for each in value]
        return tuple(items) if isinstance(value, tuple) else items
    raise TypeError(f"result {name} is a {type(value).__name__}, not a tensor or a plain value")
