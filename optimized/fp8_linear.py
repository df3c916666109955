"""fp8_linear with a weight that knows its size, blocks and layout.

packed = PackedFp8Weight.pack(weight, weight_scale_inv, (128, 128))     # once
y = fp8_linear(x, packed, layer.bias)                                   # x [..., K] -> y [..., N]
"""

from torch import Tensor

import serving
from optimized.operators import operator

LAYOUT = "e4m3-vnni2-n32k32"


class PackedFp8Weight(serving.PackedFp8Weight):
    """A packed weight [N, K] of float8_e4m3fn, with the scales of its blocks."""

    @staticmethod
    def pack(weight: Tensor, scales: Tensor, block_size: tuple[int, int]) -> "PackedFp8Weight":
        """Pack a float8_e4m3fn weight [N, K]; scales float32 [ceil(N/bn), ceil(K/bk)] for `block_size` (bn, bk), any from 1 on.

        (128, 128) are the blocks of DeepSeek-V3, (1, K) is a scale for each output, (N, K) one for all. Raises TypeError
        (dtypes), ValueError (shapes, block_size, a scale that is not finite).
        """
        if len(block_size) != 2:
            raise ValueError(f"block_size must hold two numbers, got {block_size}")
        block_n, block_k = block_size
        data, kept = operator("pack_fp8_weight")(weight, scales, block_n, block_k)
        N, K = weight.shape
        return PackedFp8Weight(data, kept, LAYOUT, N, K, (block_n, block_k))

    def unpack(self) -> Tensor:
        """The codes [N, K], bit for bit."""
        weight: Tensor = operator("unpack_fp8_weight")(self.data, self.N, self.K)
        return weight


def fp8_linear(x: Tensor, packed: serving.PackedFp8Weight, bias: Tensor | None = None) -> Tensor:
    """x [..., K] of any float dtype times a packed weight [N, K], plus bias [N]: [..., N], summed in float32, rounded once.

    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, an unknown layout).
    """
    if not isinstance(packed, serving.PackedFp8Weight):
        raise TypeError(f"packed must be a PackedFp8Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    sizes = (packed.N, packed.K, *packed.block_size)
    out: Tensor = operator("fp8_linear")(x, packed.data, packed.scales, *sizes, bias)
    return out
