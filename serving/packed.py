"""Packed weights as objects: no tensors, so that they cannot enter an unpacked layer by mistake. Each side packs by itself.

What an engine keeps are tensors. `tensors()` gives those that make up a packed weight, `from_tensors` the object again:

    module.register_buffer("weight", packed.data)                  # or a state_dict, a file, shared memory
    module.register_buffer("weight_sizes", packed.tensors()["sizes"])
    packed = PackedWeight.from_tensors(module.weight, module.weight_sizes)
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
CONV_WIDTHS = (2, 3, 4)


@dataclass(frozen=True)
class PackedWeight:
    """An immutable packed weight [N, K] of a linear layer.

    `data` has shape [ceil(N/32), ceil(K/32), 2, 32/r, 16, r] with r = 2 for 16-bit dtypes and 1 for float32; it does not
    depend on the machine. `layout` names that order; another order would have another name.
    """

    data: Tensor
    layout: str
    N: int
    K: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, and of the x that it multiplies."""
        return self.data.dtype

    def tensors(self) -> dict[str, Tensor]:
        """`data` itself, not a copy, and `sizes` [2] with N and K, which data holds rounded up to whole blocks."""
        return {"data": self.data, "sizes": torch.tensor([self.N, self.K])}

    @classmethod
    def from_tensors(cls, data: Tensor, sizes: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        N, K = _sizes_of(sizes)
        r = 1 if _is_float(data) == torch.float32 else 2
        _check_data(data, [_blocks(N), _blocks(K), 2, 32 // r, 16, r], sizes)
        return cls(data, "f32-n32k32" if r == 1 else "vnni2-n32k32", N, K)


@dataclass(frozen=True)
class PackedInt8Weight:
    """An immutable packed int8 weight [N, K] of a linear layer.

    `data` has shape [ceil(N/32), ceil(K/64), 2, 16, 16, 4]; `sums` holds the sum of each of its N rows, in int32.
    """

    data: Tensor
    sums: Tensor
    layout: str
    N: int
    K: int

    def tensors(self) -> dict[str, Tensor]:
        """`data` and `sums` themselves, not copies, and `sizes` [2] with N and K."""
        return {"data": self.data, "sums": self.sums, "sizes": torch.tensor([self.N, self.K])}

    @classmethod
    def from_tensors(cls, data: Tensor, sums: Tensor, sizes: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        N, K = _sizes_of(sizes)
        _check_dtypes(data=(data, torch.int8), sums=(sums, torch.int32))
        _check_data(data, [_blocks(N), _blocks(K, 64), 2, 16, 16, 4], sizes)
        _check_shapes(sums=(sums, [N]))
        return cls(data, sums, "vnni4-n32k64", N, K)


@dataclass(frozen=True)
class PackedFp8Weight:
    """An immutable packed weight [N, K] of float8_e4m3fn codes, with a float32 scale for each block of it.

    `data` has shape [ceil(N/32), ceil(K/32), 2, 16, 16, 2], the codes as uint8; `scales` has [ceil(N/bn), ceil(K/bk)] for
    `block_size` (bn, bk).
    """

    data: Tensor
    scales: Tensor
    layout: str
    N: int
    K: int
    block_size: tuple[int, int]

    def tensors(self) -> dict[str, Tensor]:
        """`data` and `scales` themselves, not copies, `sizes` [2] with N and K, and `blocks` [2] with the block size."""
        sizes, blocks = torch.tensor([self.N, self.K]), torch.tensor(self.block_size)
        return {"data": self.data, "scales": self.scales, "sizes": sizes, "blocks": blocks}

    @classmethod
    def from_tensors(cls, data: Tensor, scales: Tensor, sizes: Tensor, blocks: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        (N, K), (block_n, block_k) = _sizes_of(sizes), _sizes_of(blocks, "blocks")
        _check_dtypes(data=(data, torch.uint8), scales=(scales, torch.float32))
        _check_data(data, [_blocks(N), _blocks(K), 2, 16, 16, 2], sizes)
        _check_shapes(scales=(scales, [_blocks(N, block_n), _blocks(K, block_k)]))
        return cls(data, scales, "e4m3-vnni2-n32k32", N, K, (block_n, block_k))


@dataclass(frozen=True)
class PackedInt4Weight:
    """An immutable packed weight [N, K] of codes of four bits, with a scale and a zero point for each group of columns.

    `data` has shape [ceil(N/32), ceil(K/32), 2, 16, 16], two codes in a byte; `scales` (float32) and `zeros` (uint8) have
    [ceil(N/32), ceil(K/group_size), 32].
    """

    data: Tensor
    scales: Tensor
    zeros: Tensor
    layout: str
    N: int
    K: int
    group_size: int

    def tensors(self) -> dict[str, Tensor]:
        """`data`, `scales` and `zeros` themselves, not copies, `sizes` [2] with N and K, and `blocks` [2] with 1 and the group
        size: a scale is of one output and so many columns."""
        sizes, blocks = torch.tensor([self.N, self.K]), torch.tensor([1, self.group_size])
        return {"data": self.data, "scales": self.scales, "zeros": self.zeros, "sizes": sizes, "blocks": blocks}

    @classmethod
    def from_tensors(cls, data: Tensor, scales: Tensor, zeros: Tensor, sizes: Tensor, blocks: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        (N, K), (outputs, group_size) = _sizes_of(sizes), _sizes_of(blocks, "blocks")
        if outputs != 1:
            raise ValueError(f"blocks must begin with 1, since each output has scales of its own, got {[outputs, group_size]}")
        _check_dtypes(data=(data, torch.uint8), scales=(scales, torch.float32), zeros=(zeros, torch.uint8))
        _check_data(data, [_blocks(N), _blocks(K), 2, 16, 16], sizes)
        groups = [_blocks(N), _blocks(K, group_size), 32]
        _check_shapes(scales=(scales, groups), zeros=(zeros, groups))
        return cls(data, scales, zeros, "nib2-n32k32", N, K, group_size)


@dataclass(frozen=True)
class PackedExperts:
    """Immutable packed weights [E, N, K] of one projection of all experts, each packed as a `PackedWeight` is.

    `data` has shape [E, ceil(N/32), ceil(K/32), 2, 32/r, 16 r]: the last two dimensions of a packed weight are one here.
    """

    data: Tensor
    layout: str
    E: int
    N: int
    K: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and of the x that they multiply."""
        return self.data.dtype

    def tensors(self) -> dict[str, Tensor]:
        """`data` itself, not a copy, and `sizes` [2] with N and K, which data holds rounded up to whole blocks."""
        return {"data": self.data, "sizes": torch.tensor((self.N, self.K))}

    @classmethod
    def from_tensors(cls, data: Tensor, sizes: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        N, K = _sizes_of(sizes)
        r = 1 if _is_float(data) == torch.float32 else 2
        E = data.shape[0] if data.dim() and len(data) else 1
        _check_data(data, [E, _blocks(N), _blocks(K), 2, 32 // r, 16 * r], sizes)
        return cls(data, "f32-n32k32" if r == 1 else "vnni2-n32k32", E, N, K)


@dataclass(frozen=True)
class PackedInt8Experts:
    """Immutable packed int8 weights [E, N, K] of one projection of all experts, each packed as a `PackedInt8Weight` is.

    `data` has shape [E, ceil(N/32), ceil(K/64), 2, 16, 64]: the last two dimensions of a packed weight are one here. `sums`
    [E, N] holds the sums of rows in int32, `scale` [E, N] what they are multiplied with, in float32.
    """

    data: Tensor
    sums: Tensor
    scale: Tensor
    layout: str
    E: int
    N: int
    K: int

    def tensors(self) -> dict[str, Tensor]:
        """`data`, `sums` and `scale` themselves, not copies, and `sizes` [2] with N and K."""
        return {"data": self.data, "sums": self.sums, "scale": self.scale, "sizes": torch.tensor((self.N, self.K))}

    @classmethod
    def from_tensors(cls, data: Tensor, sums: Tensor, scale: Tensor, sizes: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        N, K = _sizes_of(sizes)
        _check_dtypes(data=(data, torch.int8), sums=(sums, torch.int32), scale=(scale, torch.float32))
        E = data.shape[0] if data.dim() and len(data) else 1
        _check_data(data, [E, _blocks(N), _blocks(K, 64), 2, 16, 64], sizes)
        _check_shapes(sums=(sums, [E, N]), scale=(scale, [E, N]))
        return cls(data, sums, scale, "vnni4-n32k64", E, N, K)


@dataclass(frozen=True)
class PackedFp8Experts:
    """Immutable packed weights [E, N, K] of float8_e4m3fn codes of one projection of all experts, each packed as a
    `PackedFp8Weight` is.

    `data` has shape [E, ceil(N/32), ceil(K/32), 2, 16, 32], the codes as uint8; `scales` [E, ceil(N/bn), ceil(K/bk)] in float32
    for `block_size` (bn, bk), which is that of all experts.
    """

    data: Tensor
    scales: Tensor
    layout: str
    E: int
    N: int
    K: int
    block_size: tuple[int, int]

    def tensors(self) -> dict[str, Tensor]:
        """`data` and `scales` themselves, not copies, `sizes` [2] with N and K, and `blocks` [2] with the block size."""
        sizes, blocks = torch.tensor((self.N, self.K)), torch.tensor(self.block_size)
        return {"data": self.data, "scales": self.scales, "sizes": sizes, "blocks": blocks}

    @classmethod
    def from_tensors(cls, data: Tensor, scales: Tensor, sizes: Tensor, blocks: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        (N, K), (block_n, block_k) = _sizes_of(sizes), _sizes_of(blocks, "blocks")
        _check_dtypes(data=(data, torch.uint8), scales=(scales, torch.float32))
        E = data.shape[0] if data.dim() and len(data) else 1
        _check_data(data, [E, _blocks(N), _blocks(K), 2, 16, 32], sizes)
        _check_shapes(scales=(scales, [E, _blocks(N, block_n), _blocks(K, block_k)]))
        return cls(data, scales, "e4m3-vnni2-n32k32", E, N, K, (block_n, block_k))


@dataclass(frozen=True)
class PackedConvWeight:
    """An immutable packed weight [dim, width] of a depthwise convolution; `data` is [ceil(dim/32), ceil(width/2), 32, 2]."""

    data: Tensor
    layout: str
    dim: int
    width: int

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, and of the x that it is applied to."""
        return self.data.dtype

    def tensors(self) -> dict[str, Tensor]:
        """`data` itself, not a copy, and `sizes` [2] with dim and width, which data holds rounded up."""
        return {"data": self.data, "sizes": torch.tensor([self.dim, self.width])}

    @classmethod
    def from_tensors(cls, data: Tensor, sizes: Tensor) -> Self:
        """What `tensors` gave; nothing is copied. Raises TypeError (types), ValueError (sizes, a shape that they do not have)."""
        dim, width = _sizes_of(sizes)
        if width not in CONV_WIDTHS:
            raise ValueError(f"sizes must have a width of 2, 3 or 4, got {[dim, width]}")
        _is_float(data)
        _check_data(data, [_blocks(dim), (width + 1) // 2, 32, 2], sizes)
        return cls(data, "pairs-n32", dim, width)


def _blocks(size: int, of: int = 32) -> int:
    return -(-size // of)


def _sizes_of(sizes: object, name: str = "sizes") -> tuple[int, int]:
    if not isinstance(sizes, Tensor) or sizes.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be a tensor of int32 or int64, got {getattr(sizes, 'dtype', type(sizes).__name__)}")
    if list(sizes.shape) != [2] or bool((sizes < 1).any()):
        raise ValueError(f"{name} must hold two numbers from 1 on, got {sizes.tolist()}")
    first, second = sizes.tolist()
    return first, second


def _is_float(data: object) -> torch.dtype:
    if not isinstance(data, Tensor) or data.dtype not in FLOATS:
        found = getattr(data, "dtype", type(data).__name__)
        raise TypeError(f"data must be a tensor of bfloat16, float16 or float32, got {found}")
    return data.dtype


def _check_dtypes(**parts: tuple[object, torch.dtype]) -> None:
    for name, (value, dtype) in parts.items():
        if not isinstance(value, Tensor) or value.dtype != dtype:
            raise TypeError(f"{name} must be a tensor of {dtype}, got {getattr(value, 'dtype', type(value).__name__)}")


def _check_shapes(**parts: tuple[Tensor, list[int]]) -> None:
    for name, (value, shape) in parts.items():
        if list(value.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {list(value.shape)}")


def _check_data(data: Tensor, shape: list[int], sizes: Tensor) -> None:
    if list(data.shape) != shape:
        raise ValueError(f"data must have shape {shape} for sizes {sizes.tolist()}, got {list(data.shape)}")
    if not data.is_contiguous():
        raise ValueError(f"data must be contiguous, got strides {list(data.stride())}")
