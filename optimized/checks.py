"""Argument checks for layers that are Python over several operators: everything is checked before the first of them writes."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

INDEX_DTYPES = (torch.int32, torch.int64)
FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_tensor(name: str, value: object, rank: int, dtypes: Sequence[torch.dtype], shape: Sequence[int | None] = ()) -> None:
    """TypeError unless `value` is a tensor of one of `dtypes`, ValueError unless it has `rank` and `shape` (None: any)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got device {value.device}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {value.dtype}, expected one of {', '.join(map(str, dtypes))}")
    if value.dim() != rank or any(want not in (None, size) for want, size in zip(shape, value.shape)):
        wanted = list(shape) if shape else f"{rank} dimensions"
        raise ValueError(f"{name} must have shape {wanted}, got {list(value.shape)}")


def check_integer(name: str, value: object) -> None:
    """TypeError unless `value` is an int, ValueError unless 64 bits hold it: an operator cannot say this of a number in a
    list."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} = {value} does not fit 64 bits")


def check_offsets(name: str, offsets: Sequence[int], last: int) -> None:
    """From 0 or above, never falling, up to `last` or below."""
    if not offsets or offsets[0] < 0 or offsets[-1] > last or any(a > b for a, b in itertools.pairwise(offsets)):
        raise ValueError(f"{name} must rise from 0 or above to at most {last}, got {list(offsets)}")


def check_slots(name: str, slots: Sequence[int], live: Sequence[bool], size: int) -> None:
    """IndexError for a live slot outside [0, size), ValueError for one that stands twice."""
    seen = set()
    for row, slot in enumerate(slots):
        if not live[row]:
            continue
        if not 0 <= slot < size:
            raise IndexError(f"{name}[{row}] = {slot} is outside [0, {size})")
        if slot in seen:
            raise ValueError(f"{name} holds slot {slot} more than once")
        seen.add(slot)


def check_disjoint(mutated: Mapping[str, Tensor], read: Mapping[str, Tensor | None]) -> None:
    """ValueError if a mutated tensor shares a byte with itself or with any other."""
    for name, value in mutated.items():
        reach = 0
        for stride, size in sorted((stride, size) for size, stride in zip(value.shape, value.stride()) if size > 1):
            if value.numel() and stride <= reach:
                raise ValueError(f"{name} overlaps itself: shape {list(value.shape)}, strides {list(value.stride())}")
            reach += (size - 1) * stride
    others = {name: value for name, value in read.items() if value is not None}
    names = list(mutated)
    pairs = [(a, b) for i, a in enumerate(names) for b in [*names[i + 1 :], *others]]
    for a, b in pairs:
        first, second = mutated[a], mutated[b] if b in mutated else others[b]
        if first.numel() and second.numel() and _meet(first, second) and not _interleave(first, second):
            raise ValueError(f"{a} and {b} overlap in memory")


def _span(value: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return value.data_ptr(), value.data_ptr() + (reach + 1) * value.element_size()


def _meet(a: Tensor, b: Tensor) -> bool:
    (a0, a1), (b0, b1) = _span(a), _span(b)
    return max(a0, b0) < min(a1, b1)


def _interleave(a: Tensor, b: Tensor) -> bool:
    """Whether equal strides and their distance prove that the two lie in one buffer without a shared byte: going from the
    largest stride down, some level parts them within a period."""
    a, b = sorted((a, b), key=Tensor.data_ptr)
    width = a.element_size()
    distance = b.data_ptr() - a.data_ptr()
    if width != b.element_size() or a.dim() != b.dim() or distance % width:
        return False
    dims = [(s, t, m, n) for s, t, m, n in zip(a.stride(), b.stride(), a.shape, b.shape) if max(m, n) > 1]
    if any(s != t for s, t, m, n in dims if min(m, n) > 1):
        return False
    periods = sorted(((s if m > 1 else t, m - 1, n - 1) for s, t, m, n in dims), reverse=True)
    distance //= width
    for level, (stride, _, _) in enumerate(periods):
        reach_a = sum(steps * inner for inner, steps, _ in periods[level + 1 :])
        reach_b = sum(steps * inner for inner, _, steps in periods[level + 1 :])
        distance %= max(stride, 1)
        if reach_a >= stride or distance + reach_b >= stride:
            return False
        if distance > reach_a:
            return True
    return False
