"""Calls made wrong at random: any argument given another rank, shape, dtype, stride, value or type than the contract wants."""

import math
from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelpair.call.place import over
from kernelpair.call.values import generator
from kernelpair.contract.pair import Alias, Inputs

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
)
INTEGERS = (-1, 0, 1, 2, 3, 7, -129, 128, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**62, 2**63 - 1, -(2**63))
NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 1e-300, 1e-50, 1e39, 1e300, 0.5, *INTEGERS)
STRANGERS: tuple[Any, ...] = (None, "text", (), [1, 2], 1.5, 7, {}, 10**400)
"""Values of every other type that Python code may pass by mistake."""

Rng = np.random.Generator
Change = Callable[[Rng, Tensor], Any]


def made_wrong(seed: int, inputs: Inputs, names: Sequence[str], which: int = 0) -> tuple[Inputs, dict[str, str]]:
    """A copy of valid logical inputs with one of `names`, at times two, made wrong; and by name what was done to it in words.
    `which` of the ways that a seed gives.

    The result may by chance still be valid, such as a window of 7 instead of 3. The caller asks the reference.
    """
    rng = generator(seed, f"fuzz {which}" if which else "fuzz")
    wrong: Inputs = dict(inputs)
    done: dict[str, str] = {}
    count = 1 if rng.random() < 0.8 else min(2, len(names))
    for name in map(str, rng.choice(names, size=count, replace=False)):
        wrong[name], done[name] = _another(rng, name, wrong)
    return wrong, done


def _another(rng: Rng, name: str, inputs: Inputs) -> tuple[Any, str]:
    value = inputs[name]
    if rng.random() < 0.1:
        # torch takes any number, and None, for a flag
        strangers = STRANGERS if not isinstance(value, bool) else tuple(s for s in STRANGERS if isinstance(s, Sized))
        stranger = strangers[rng.integers(len(strangers))]
        return stranger, f"replaced by {str(stranger)[:20] or repr(stranger)}"
    if isinstance(value, Tensor):
        if rng.random() < 0.1:
            return _other_argument(rng, name, inputs)
        changes = TENSOR + (INDEX if value.dtype in (torch.int32, torch.int64) else FLOAT)
        change = changes[rng.integers(len(changes))]
        return change(rng, value), str(change.__name__).strip("_").replace("_", " ")
    if isinstance(value, list) and value and all(isinstance(entry, int) for entry in value):
        entries = [entry if rng.random() < 0.5 else INTEGERS[rng.integers(len(INTEGERS))] for entry in value]
        return entries, f"set to {entries}"
    if value is None or isinstance(value, (bool, str, Alias)):
        shape = rng.choice([0, 2, 3], size=rng.integers(1, 4)).tolist()  # torch takes a tensor of one element for its number
        dtype = DTYPES[rng.integers(len(DTYPES))]
        return torch.zeros(shape, dtype=dtype), f"replaced by {dtype} {shape}"
    numbers = INTEGERS if isinstance(value, int) else NUMBERS
    number = numbers[rng.integers(len(numbers))]
    return number, f"set to {number}"


def _other_argument(rng: Rng, name: str, inputs: Inputs) -> tuple[Any, str]:
    """The memory of another argument, of any dtype, which may be one that the call writes."""
    shape, dtype = tuple(inputs[name].shape), inputs[name].dtype
    others = [
        other for other, tensor in inputs.items()
        if other != name and isinstance(tensor, Tensor) and tensor.is_contiguous() and tensor.nbytes >= inputs[name].nbytes
    ]
    if not others:
        return None, "replaced by None"
    other, last = str(rng.choice(others)), bool(rng.integers(2))
    return Alias(other, lambda tensor: over(tensor, shape, dtype, last)), f"laid over {'the end of ' if last else ''}{other}"


def _one_dimension_more(rng: Rng, value: Tensor) -> Tensor:
    return value.unsqueeze(int(rng.integers(0, value.dim() + 1)))


def _one_dimension_less(rng: Rng, value: Tensor) -> Tensor:
    if not value.dim():
        return value[None]
    return value.flatten() if 0 in value.shape else value.select(int(rng.integers(value.dim())), 0).contiguous()


def _another_size(rng: Rng, value: Tensor) -> Tensor:
    if not value.dim():
        return value[None]
    shape, dim = list(value.shape), int(rng.integers(value.dim()))
    shape[dim] = int(rng.choice([0, 1, shape[dim] + 1, max(shape[dim] - 1, 0), 2 * shape[dim] + 1]))
    grown = torch.zeros(shape, dtype=value.dtype)
    kept = tuple(slice(0, min(a, b)) for a, b in zip(shape, value.shape))
    grown[kept] = value[kept]
    return grown


def _dimensions_swapped(rng: Rng, value: Tensor) -> Tensor:
    return value.permute(rng.permutation(value.dim()).tolist()).contiguous() if value.dim() else value[None]


def _another_dtype(rng: Rng, value: Tensor) -> Tensor:
    return torch.zeros(value.shape, dtype=DTYPES[rng.integers(len(DTYPES))])


def _with_gaps(rng: Rng, value: Tensor) -> Tensor:
    """Every second element in one dimension."""
    if not value.dim():
        return value[None]
    dim = int(rng.integers(value.dim()))
    return value.repeat_interleave(2, dim).movedim(dim, -1)[..., ::2].movedim(-1, dim)


def _turned(rng: Rng, value: Tensor) -> Tensor:
    """The same numbers, its dimensions in another order in memory."""
    order = rng.permutation(value.dim()).tolist()
    back = [order.index(dim) for dim in range(value.dim())]
    return value.permute(order).contiguous().permute(back)


def _overlapping_itself(rng: Rng, value: Tensor) -> Tensor:
    """Stride 0 in one dimension."""
    if not value.dim() or 0 in value.shape:
        return _another_size(rng, value)
    dim = int(rng.integers(value.dim()))
    return value.narrow(dim, 0, 1).expand(value.shape)


def _with_one_other_index(rng: Rng, value: Tensor) -> Tensor:
    if not value.numel():
        return _another_size(rng, value)
    ends = torch.iinfo(value.dtype)
    wrong = value.clone().flatten()
    place = int(rng.integers(len(wrong)))
    choices = (*INTEGERS, len(wrong), int(wrong.max()) + 1, int(wrong[place]) + 2**32)  # the last is right in 32 bits
    wrong[place] = int(rng.choice([number for number in choices if ends.min <= number <= ends.max]))
    return wrong.view(value.shape)


def _with_an_index_twice(rng: Rng, value: Tensor) -> Tensor:
    wrong = value.clone().flatten()
    if len(wrong) < 2:
        return _with_one_other_index(rng, value)
    first, second = rng.integers(len(wrong), size=2)
    wrong[first] = wrong[second]
    return wrong.view(value.shape)


def _with_indices_shuffled(rng: Rng, value: Tensor) -> Tensor:
    return value.flatten()[torch.from_numpy(rng.permutation(value.numel()))].view(value.shape)


def _with_one_not_finite(rng: Rng, value: Tensor) -> Tensor:
    if not value.numel() or not value.dtype.is_floating_point:
        return _another_dtype(rng, value)
    wrong = value.clone().flatten()
    wrong[int(rng.integers(len(wrong)))] = float(rng.choice([math.nan, math.inf, -math.inf]))
    return wrong.view(value.shape)


TENSOR: tuple[Change, ...] = (
    _one_dimension_more, _one_dimension_less, _another_size, _another_size, _dimensions_swapped, _another_dtype, _with_gaps,
    _turned, _overlapping_itself,
)
INDEX: tuple[Change, ...] = (_with_one_other_index, _with_one_other_index, _with_an_index_twice, _with_indices_shuffled)
FLOAT: tuple[Change, ...] = (_with_one_not_finite,)
