"""Linear layers with packed weights, and which weights are packed at all."""

import torch
from torch import Tensor

from reference.causal_conv1d import WIDTHS, PackedConvWeight
from reference.fp8_linear import PackedFp8Weight, fp8_linear
from reference.int8_linear import PackedInt8Weight, int8_linear
from reference.packed_linear import PackedWeight, packed_linear
from serving.checks import check_linear, check_scales

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def make_linear_dispatch(weight: Tensor) -> PackedWeight | PackedConvWeight | Tensor:
    """Pack a linear weight [N, K] or a depthwise convolution's [dim, 1, w] with w in 2..4; anything else comes back untouched."""
    packable = not weight.is_meta and weight.dtype in FLOATS and 0 not in weight.shape
    if packable and weight.dim() == 2:
        return PackedWeight.pack(weight)
    if packable and weight.dim() == 3 and weight.shape[1] == 1 and weight.shape[2] in WIDTHS:
        return PackedConvWeight.pack(weight)
    return weight


class Linear:
    """y = x W^T + b for a weight that is loaded once. Until a bias is loaded it is zero."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: torch.dtype = torch.bfloat16) -> None:
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.bias = torch.zeros(out_features, dtype=dtype) if bias else None
        self.packed: PackedWeight | None = None

    def load(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over weight [out_features, in_features] and, where given, bias. ValueError, TypeError; nothing changes then."""
        check_linear(weight, bias, (self.out_features, self.in_features), self.dtype, self.bias is not None)
        self.packed, self.bias = PackedWeight.pack(weight), self.bias if bias is None else bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]. ValueError before a weight is loaded."""
        if self.packed is None:
            raise ValueError("weight: none is loaded")
        return packed_linear(x, self.packed, self.bias)


class Int8Linear:
    """y = q(x) (scale W)^T + b, rows of x quantized one by one."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        check_scales(scale, weight.shape[:1])
        self.weight = PackedInt8Weight.pack(weight)
        self.scale, self.bias = scale.clone(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return int8_linear(x, self.weight, self.scale, self.bias)


class Fp8Linear:
    """y = x (scale W)^T + b, W float8 codes and a scale for each block of them."""

    def __init__(self, weight: Tensor, scales: Tensor, block_size: tuple[int, int], bias: Tensor | None = None) -> None:
        self.weight = PackedFp8Weight.pack(weight, scales, block_size)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return fp8_linear(x, self.weight, self.bias)
