"""Packed weights as objects: no tensors, so that they cannot enter an unpacked layer by mistake. Each side packs by itself."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
