"""packed_linear with a weight that knows its size and layout.

packed = PackedWeight.pack(layer.weight)        # once
y = packed_linear(x, packed, layer.bias)        # x [..., K] -> y [..., N]
"""

import torch
from torch import Tensor

import serving
from optimized.operators import operator

LAYOUTS = {torch.bfloat16: "vnni2-n32k32", torch.float16: "vnni2-n32k32", torch.float32: "f32-n32k32"}



class PackedWeight(serving.PackedWeight):
    """A packed weight [N, K] of bfloat16, float16 or float32."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedWeight":
        """Pack a weight [N, K] of bfloat16, float16 or float32. Raises TypeError (dtype), ValueError (rank, empty)."""
        data = operator("pack_linear_weight")(weight)
        N, K = weight.shape
        return PackedWeight(data, LAYOUTS[weight.dtype], N, K)

    def unpack(self) -> Tensor:
        """The weight [N, K], bit for bit."""
        weight: Tensor = operator("unpack_linear_weight")(self.data, self.N, self.K)
        return weight


def packed_linear(x: Tensor, packed: serving.PackedWeight, bias: Tensor | None = None) -> Tensor:
    """x [..., K] times a packed weight [N, K], plus bias [N] of any float dtype: [..., N], summed in float32, rounded once.

    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, an unknown layout).
    """
    if not isinstance(packed, serving.PackedWeight):
        raise TypeError(f"packed must be a PackedWeight, got {type(packed).__name__}")
    if packed.layout not in LAYOUTS.values():
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    out: Tensor = operator("packed_linear")(x, packed.data, packed.N, packed.K, bias)
    return out
