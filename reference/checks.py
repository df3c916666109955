"""Argument checks that every reference shares; each raises the class that the contract names, with the argument in the message.

Nothing here computes: a reader who trusts the callers may skip this file.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # float64 is how the truth is evaluated
INDEX_DTYPES = (torch.int32, torch.int64)


def fail(error: type[Exception], message: str) -> NoReturn:
    """Raise `error` with `message`; a function, so that checks fit on one line."""
    raise error(message)


def is_tensor(name: str, value: object, rank: int | None = None) -> None:
    """TypeError unless `value` is a tensor, ValueError unless it has `rank` dimensions (None: any)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if rank is not None and value.dim() != rank:
        raise ValueError(f"{name} must have {rank} dimensions, got shape {list(value.shape)}")


def is_number(name: str, value: object) -> None:
    """TypeError unless `value` is an int or a float, ValueError for an int beyond all floats."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{name} = {value} is too large") from None


def is_integer(name: str, value: object) -> None:
    """TypeError unless `value` is an int, ValueError unless 64 bits hold it."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} = {value} does not fit 64 bits")


def is_count(name: str, value: object, least: int = 0) -> None:
    """TypeError unless `value` is an int, ValueError unless it is at least `least` and 64 bits hold it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    is_integer(name, value)


def has_shape(name: str, value: Tensor, shape: Sequence[int]) -> None:
    """ValueError unless `value` has exactly `shape`."""
    if list(value.shape) != list(shape):
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(value.shape)}")


def has_columns(name: str, value: Tensor, columns: int) -> None:
    """ValueError unless the last dimension of `value` is K = `columns`."""
    if value.dim() < 1 or value.shape[-1] != columns:
        raise ValueError(f"{name} must have K = {columns} columns, got shape {list(value.shape)}")


def linear_bias(bias: Tensor | None, outputs: int) -> None:
    """TypeError and ValueError unless `bias` is None or a vector of any float dtype with a number for each output."""
    if bias is not None:
        is_tensor("bias", bias, 1)
        has_shape("bias", bias, [outputs])
        has_dtype("bias", bias, FLOAT_DTYPES)


def has_dtype(name: str, value: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """TypeError unless the dtype of `value` is one of `dtypes`."""
    if value.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {value.dtype}, expected one of {', '.join(map(str, dtypes))}")


def same_dtype(tensors: Mapping[str, Tensor | None], dtypes: Sequence[torch.dtype] = FLOAT_DTYPES) -> None:
    """TypeError unless all tensors share one dtype out of `dtypes`; None entries are left out."""
    first: tuple[str, Tensor] | None = None
    for name, value in tensors.items():
        if value is None:
            continue
        has_dtype(name, value, dtypes)
        if first is None:
            first = (name, value)
        elif value.dtype != first[1].dtype:
            raise TypeError(f"{name} has dtype {value.dtype}, but {first[0]} has {first[1].dtype}")


def parameter_vector(name: str, value: Tensor, size: int, dtype: torch.dtype) -> None:
    """A per-head or per-channel vector: shape [size], in the call's dtype or float32."""
    is_tensor(name, value, 1)
    has_shape(name, value, [size])
    has_dtype(name, value, (dtype, torch.float32))


def state_dtype(name: str, value: Tensor, dtype: torch.dtype) -> None:
    """TypeError unless a recurrent state is in float32 or bfloat16; in a call in float64, the truth, it may be in that too."""
    allowed = (torch.float32, torch.bfloat16)
    has_dtype(name, value, (*allowed, torch.float64) if dtype == torch.float64 else allowed)


def is_index(name: str, value: object, shape: Sequence[int] | None = None) -> None:
    """An index, length or offset tensor: int32 or int64 (TypeError), of `shape` (ValueError)."""
    is_tensor(name, value)
    assert isinstance(value, Tensor)
    has_dtype(name, value, INDEX_DTYPES)
    if shape is not None:
        has_shape(name, value, shape)


def dense_last_dim(name: str, value: Tensor) -> None:
    """ValueError unless the last dimension is dense (any stride if its size is 0 or 1)."""
    if value.dim() and value.shape[-1] > 1 and value.stride(-1) != 1 and value.numel():
        raise ValueError(f"{name} must be dense in its last dimension, got strides {list(value.stride())}")


def in_range(name: str, value: Tensor, size: int, used: Tensor | None = None) -> None:
    """IndexError unless 0 <= value < size for every used entry (a mask; None: all); it names the first bad row and value."""
    outside = (value < 0) | (value >= size)
    bad = (outside if used is None else outside & used).nonzero()
    if len(bad):
        row = bad[0].tolist()
        raise IndexError(f"{name}{row} = {int(value[tuple(row)])} is outside [0, {size})")


def no_duplicates(name: str, slots: Tensor) -> None:
    """ValueError if a slot is written twice."""
    values, counts = slots.unique(return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} holds slot {int(values[counts > 1][0])} more than once")


def are_pads(indices: Tensor, pad_slot: int | None) -> Tensor:
    """The mask of the entries that equal the pad slot: in 64 bits, for torch compares int32 with the lower half of a number."""
    return torch.zeros(indices.shape, dtype=torch.bool) if pad_slot is None else indices.long() == pad_slot


def written_slots(name: str, indices: Tensor, slots: int, pad_slot: int | None, live: Tensor | None = None) -> Tensor:
    """The mask of the entries of `indices` [B] that are written: no pads, and `live` (a mask; None: all). The others are
    never interpreted; a written one outside [0, slots) is an IndexError, one that stands twice a ValueError."""
    used = torch.ones(len(indices), dtype=torch.bool) if live is None else live
    if pad_slot is not None:
        is_integer("pad_slot", pad_slot)
        used = used & ~are_pads(indices, pad_slot)
    in_range(name, indices, slots, used)
    no_duplicates(name, indices[used])
    return used


def offsets(name: str, value: Tensor, tokens: int) -> None:
    """ValueError unless `value` [B + 1] starts at 0 or above, never falls, and ends at `tokens` or below."""
    if len(value) == 0:
        raise ValueError(f"{name} must hold at least one offset")
    if int(value[0]) < 0:
        raise ValueError(f"{name}[0] = {int(value[0])} is negative")
    falls = (value[1:] < value[:-1]).nonzero()
    if len(falls):
        row = int(falls[0]) + 1
        raise ValueError(f"{name} must not decrease: {name}[{row}] = {int(value[row])} after {int(value[row - 1])}")
    if int(value[-1]) > tokens:
        raise ValueError(f"{name}[{len(value) - 1}] = {int(value[-1])} lies beyond the {tokens} tokens")


FLOAT32_ZERO, FLOAT32_INFINITE = 2.0**-150, (2 - 2.0**-24) * 2.0**127
"""In float32 a number up to the first rounds to 0, and one from the second on to infinity."""


def positive(name: str, value: float) -> None:
    """TypeError unless `value` is a number, ValueError unless it is finite and above 0, also when it is rounded to float32."""
    is_number(name, value)
    if not FLOAT32_ZERO < value < FLOAT32_INFINITE:
        raise ValueError(f"{name} must be finite and > 0 in float32, got {value}")


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the tensor addresses."""
    if tensor.numel() == 0:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()


def _interleave(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of equal strides lie in a common buffer without a shared byte, as the k and v halves of a fused
    buffer do: going from the largest stride down, the distance must part them inside one period."""
    width = a.element_size()
    if width != b.element_size() or a.dim() != b.dim() or (b.data_ptr() - a.data_ptr()) % width:
        return False
    if b.data_ptr() < a.data_ptr():
        a, b = b, a
    dims = [(sa, sb, ta, tb) for sa, sb, ta, tb in zip(a.shape, b.shape, a.stride(), b.stride()) if max(sa, sb) > 1]
    if any(ta != tb for sa, sb, ta, tb in dims if min(sa, sb) > 1):
        return False
    periods = sorted(((ta if sa > 1 else tb, sa - 1, sb - 1) for sa, sb, ta, tb in dims), reverse=True)
    distance = (b.data_ptr() - a.data_ptr()) // width
    for level, (stride, _, _) in enumerate(periods):
        reach_a = sum(steps * step for step, steps, _ in periods[level + 1 :])
        reach_b = sum(steps * step for step, _, steps in periods[level + 1 :])
        distance %= max(stride, 1)
        if reach_a >= stride or distance + reach_b >= stride:
            return False
        if distance > reach_a:
            return True
    return False


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of a tensor may share a byte (decided by nesting its strides)."""
    reach = 0
    for stride, size in sorted((t, s) for s, t in zip(tensor.shape, tensor.stride()) if s > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def disjoint(mutated: Mapping[str, Tensor | None], others: Mapping[str, Tensor | None]) -> None:
    """ValueError if a mutated tensor shares a byte with itself, another mutated tensor or one of `others`."""
    written = {name: value for name, value in mutated.items() if value is not None and value.numel()}
    read = {name: value for name, value in others.items() if value is not None and value.numel()}
    for name, value in written.items():
        if overlaps_itself(value):
            raise ValueError(f"{name} overlaps itself: shape {list(value.shape)}, strides {list(value.stride())}")
    names = list(written)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    pairs += [(a, b) for a in names for b in read]
    for a, b in pairs:
        apart(a, written[a], b, written[b] if b in written else read[b])


def apart(a: str, first: Tensor, b: str, second: Tensor) -> None:
    """ValueError if two tensors share a byte."""
    (a0, a1), (b0, b1) = _span(first), _span(second)
    if max(a0, b0) < min(a1, b1) and not _interleave(first, second):
        raise ValueError(f"{a} and {b} overlap in memory")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """TypeError unless `value` is a string, ValueError unless it is one of `allowed`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def is_bool(name: str, value: object) -> None:
    """TypeError unless `value` is a bool, or an int that stands for one."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
