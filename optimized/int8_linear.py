"""int8_linear and int8_matmul with a weight that knows its size and layout.

packed = PackedInt8Weight.pack(weight)              # once
y = int8_linear(x, packed, w_scale, layer.bias)     # x [..., K] -> y [..., N]
"""

import torch
from torch import Tensor

import serving
from optimized.operators import operator

LAYOUT = "vnni4-n32k64"


class PackedInt8Weight(serving.PackedInt8Weight):
    """A packed int8 weight [N, K], and the sums of its rows."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedInt8Weight":
        """Pack an int8 weight [N, K]. Raises TypeError (dtype), ValueError (rank, empty, K above 65536)."""
        data, sums = operator("pack_int8_weight")(weight)
        N, K = weight.shape
        return PackedInt8Weight(data, sums, LAYOUT, N, K)

    def unpack(self) -> Tensor:
        """The weight [N, K], bit for bit."""
        weight: Tensor = operator("unpack_int8_weight")(self.data, self.N, self.K)
        return weight


def int8_matmul(
    q: Tensor,
    scale: Tensor,
    azp: Tensor | None,
    packed: serving.PackedInt8Weight,
    w_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """Rows q int8 [M, K] with their scales (and zero points in -128 .. 127) times a packed weight: [M, N] in `out_dtype`.

    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, strides, zero points, an unknown layout).
    """
    _check_packed(packed)
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype, got {type(out_dtype).__name__}")
    out: Tensor = operator("int8_matmul")(q, scale, azp, packed.data, packed.sums, packed.N, packed.K, w_scale, bias, out_dtype)
    return out


def int8_linear(
    x: Tensor,
    packed: serving.PackedInt8Weight,
    w_scale: Tensor,
    bias: Tensor | None = None,
    symmetric: bool = True,
) -> Tensor:
    """Rows of x [..., K], quantized to int8 one by one, times a packed weight and its scales [N]: [..., N] in x's dtype.

    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, strides, an unknown layout).
    """
    _check_packed(packed)
    out: Tensor = operator("int8_linear")(x, packed.data, packed.sums, packed.N, packed.K, w_scale, bias, symmetric)
    return out


def _check_packed(packed: serving.PackedInt8Weight) -> None:
    if not isinstance(packed, serving.PackedInt8Weight):
        raise TypeError(f"packed must be a PackedInt8Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
