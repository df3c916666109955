"""Linear layers with packed weights, and which weights are packed at all."""

import torch
from torch import Tensor

from optimized.causal_conv1d import PackedConvWeight
from optimized.fp8_linear import PackedFp8Weight, fp8_linear
from optimized.int8_linear import PackedInt8Weight, int8_linear
from optimized.packed_linear import LAYOUTS, PackedWeight, packed_linear
from serving.checks import check_linear, check_scales

CONV_WIDTHS = (2, 3, 4)


def make_linear_dispatch(weight: Tensor) -> PackedWeight | PackedConvWeight | Tensor:
    """The form in which a kernel reads a weight, by its rank; what no kernel reads comes back untouched.

    [N, K] becomes a PackedWeight and [dim, 1, w] with w in 2..4 a PackedConvWeight. Norms [N], stacks of experts [E, N, K],
    meta tensors and integers stay as they are. Never raises on rank.
    """
    if weight.is_meta or weight.dtype not in LAYOUTS or weight.numel() == 0:
        return weight
    if weight.dim() == 2:
        return PackedWeight.pack(weight)
    if weight.dim() == 3 and weight.shape[1] == 1 and weight.shape[2] in CONV_WIDTHS:
        return PackedConvWeight.pack(weight)
    return weight


class Linear:
    """y = x W^T + b for a weight that is loaded, and packed, once.

    A bias that is never loaded is zero.

        linear = Linear(4096, 11008, bias=False)
        linear.load(checkpoint["gate_proj.weight"])
        y = linear(x)  # [..., 4096] -> [..., 11008]
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> None:
        if in_features < 1 or out_features < 1:
            name, value = ("in_features", in_features) if in_features < 1 else ("out_features", out_features)
            raise ValueError(f"{name} must be at least 1, got {value}")
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.bias = torch.zeros(out_features, dtype=dtype) if bias else None
        self.packed: PackedWeight | None = None

    def load(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over weight [out_features, in_features] and, where given, bias. ValueError, TypeError; nothing changes then."""
        check_linear(weight, bias, (self.out_features, self.in_features), self.dtype, self.bias is not None)
        self.packed = PackedWeight.pack(weight)
        if bias is not None:
            self.bias = bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]. ValueError before a weight is loaded."""
        if self.packed is None:
            raise ValueError("weight: none is loaded")
        return packed_linear(x, self.packed, self.bias)


class Int8Linear:
    """y = q(x) (scale W)^T + b: a weight of bytes, and rows of x that are quantized as they come."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        """weight int8 [N, K], scale float32 [N], bias [N] of any float dtype. Raises TypeError and ValueError."""
        check_scales(scale, (len(weight),))
        self.packed, self.scale, self.bias = PackedInt8Weight.pack(weight), scale.clone(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        return int8_linear(x, self.packed, self.scale, self.bias)


class Fp8Linear:
    """y = x (scale W)^T + b: a weight of float8 codes, a scale for each block of it."""

    def __init__(self, weight: Tensor, scales: Tensor, block_size: tuple[int, int], bias: Tensor | None = None) -> None:
        """weight float8_e4m3fn [N, K], scales float32 of its blocks, bias [N] of any float dtype. TypeError, ValueError."""
        self.packed, self.bias = PackedFp8Weight.pack(weight, scales, block_size), bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        return fp8_linear(x, self.packed, self.bias)
