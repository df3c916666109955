"""Numbers for tensors, the same on every machine: numpy's Philox counter, keyed by a case's seed and the argument's name."""

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

OUTLIER = 3.0e4  # finite in every float dtype with a wide exponent and in fp16, far above any drawn value
SHORT_SEEDS = 1024  # below it a float32 has few bits
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NAN_BITS = {
    torch.bfloat16: (torch.int16, 0x7FE5),
    torch.float16: (torch.int16, 0x7EA5),
    torch.float32: (torch.int32, 0x7FE5A5A5),
    torch.float64: (torch.int64, 0x7FFE5A5A5A5A5A5A),
}
INDEX_POISON = (-(2**31), 2**31 - 1)  # neither is a slot of anything


def generator(seed: int, name: str) -> np.random.Generator:
    """The stream of one argument of one case."""
    return np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), zlib.crc32(name.encode())]))


def uniform(
    seed: int, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    """Values in [-scale, scale), multiples of scale / 2^15 before they are rounded to a `dtype` of 16 bits or less, of
    scale / 2^24 otherwise: all bits of a float32 count. Never -0.

    Of small seeds, to which cases are simplified, a float32 has 15 bits too: those are shorter to read, and cases that were
    published before there were 24 keep their numbers.
    """
    bits, integer = (15, np.int16) if dtype.itemsize < 4 or seed < SHORT_SEEDS else (24, np.int32)
    steps = generator(seed, name).integers(-(2**bits), 2**bits, size=tuple(shape), dtype=integer)
    return torch.from_numpy(steps).to(torch.float32).mul_(scale / 2**bits).to(dtype)


def small_integers(seed: int, name: str, shape: Sequence[int], dtype: torch.dtype, limit: int = 2) -> Tensor:
    """Integers in [-limit, limit] as `dtype`: sums and products of these are exact."""
    drawn = generator(seed, name).integers(-limit, limit, size=tuple(shape), dtype=np.int8, endpoint=True)
    return torch.from_numpy(drawn).to(dtype)


def any_bits(seed: int, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Every bit pattern of the dtype: NaN payloads, -0 and subnormals are among them."""
    drawn = generator(seed, name).integers(0, 256, size=(*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(drawn).flatten().view(dtype).reshape(tuple(shape))


def signed(seed: int, name: str, sizes: Tensor) -> Tensor:
    """The numbers, in every second case with signs of their own."""
    if seed % 2:
        return sizes
    signs = generator(seed, f"{name} signs").integers(0, 2, size=tuple(sizes.shape)) * 2 - 1
    return sizes * torch.from_numpy(signs).to(sizes.dtype)


def permutation(seed: int, name: str, size: int) -> Tensor:
    """A permutation of range(size), int64."""
    return torch.from_numpy(generator(seed, name).permutation(size))


def poison(kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of what must never be read: NaN or a finite outlier; for integers and bytes two values out of any range."""
    return fill_poison(kind, torch.empty(tuple(shape), dtype=dtype))


def fill_poison(kind: str, tensor: Tensor) -> Tensor:
    """Fill in place, and return the tensor. The NaN has a payload of its own: a kernel that computes NaN writes another one."""
    dtype = tensor.dtype
    if kind == "nan" and dtype in NAN_BITS:
        integer, bits = NAN_BITS[dtype]
        tensor.view(integer).fill_(bits)
        return tensor
    return tensor.fill_(poison_value(kind, dtype))


@cache
def poison_word(kind: str, dtype: torch.dtype) -> np.generic:
    """The bits of one poisoned element, as an integer of its size."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    word: np.generic = poison(kind, (1,), dtype).view(integer).numpy()[0]
    return word


def poison_value(kind: str, dtype: torch.dtype) -> float | int | bool:
    """The scalar that stands for poison where one is assigned."""
    if dtype in (torch.int32, torch.int64):
        return INDEX_POISON[kind == "outlier"]
    if dtype == torch.uint8:
        return 0xFF if kind == "nan" else 0x5A
    if dtype == torch.int8:
        return -128 if kind == "nan" else 0x5A
    if dtype == torch.bool:
        return True
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.iinfo(dtype).max - (kind == "outlier")
    if kind == "nan":
        return float("nan")
    return 240.0 if dtype in FLOAT8 else OUTLIER


def rounded_once(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 numbers in another dtype. To one of 16 or 8 bits torch goes by way of float32 and would round twice: that step
    rounds to odd here, after which the last one rounds as if it were the only one."""
    if exact.dtype != torch.float64 or not dtype.is_floating_point or dtype.itemsize > 2:
        return exact.to(dtype)
    near = exact.to(torch.float32)
    back = near.to(torch.float64)
    bits = near.view(torch.int32)
    odd = (bits - (back.abs() > exact.abs()).to(torch.int32)) | 1
    return torch.where((back != exact) & ~exact.isnan(), odd, bits).view(torch.float32).to(dtype)
