"""int4_linear with a weight that knows its size, groups and layout.

codes, zeros = int4_from_gptq(layer.qweight, layer.qzeros)               # or int4_from_awq
packed = PackedInt4Weight.pack(codes, layer.scales.t(), zeros, 128)      # once
y = int4_linear(x, packed, layer.bias)                                   # x [..., K] -> y [..., N]
"""

from torch import Tensor

import serving
from optimized.operators import operator

LAYOUT = "nib2-n32k32"


class PackedInt4Weight(serving.PackedInt4Weight):
    """A packed weight [N, K] of codes of four bits, with a scale and a zero point for each group of columns."""

    @staticmethod
    def pack(codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int) -> "PackedInt4Weight":
        """Pack uint8 codes [N, K] in 0..15; scales [N, G] of any float dtype and uint8 zeros [N, G] in 0..16 (None: 8) for each
        group of `group_size` columns, G = ceil(K / group_size), -1 for one group.

        Raises TypeError (dtypes), ValueError (shapes, group_size, a code or zero point out of range, a scale that is not finite).
        """
        data, kept_scales, kept_zeros = operator("pack_int4_weight")(codes, scales, zeros, group_size)
        N, K = codes.shape
        return PackedInt4Weight(data, kept_scales, kept_zeros, LAYOUT, N, K, K if group_size == -1 else group_size)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        """The codes [N, K], scales in float32 and zero points [N, G]."""
        sizes = (self.N, self.K, self.group_size)
        codes, scales, zeros = operator("unpack_int4_weight")(self.data, self.scales, self.zeros, *sizes)
        return codes, scales, zeros


def int4_from_gptq(qweight: Tensor, qzeros: Tensor, zero_offset: int = 1) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and zero points [N, G] of a GPTQ layer: int32 [K / 8, N] and [G, N / 8], points stored less zero_offset."""
    codes, zeros = operator("int4_from_gptq")(qweight, qzeros, zero_offset)
    return codes, zeros


def int4_from_awq(qweight: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and zero points [N, G] of an AWQ layer: int32 [K, N / 8] and [G, N / 8]."""
    codes, zeros = operator("int4_from_awq")(qweight, qzeros)
    return codes, zeros


def int4_linear(x: Tensor, packed: serving.PackedInt4Weight, bias: Tensor | None = None, activation: str = "x") -> Tensor:
    """x [..., K] of any float dtype times a packed weight [N, K], plus bias [N]: [..., N], summed in float32, rounded once.

    With activation "int8" rows of x are quantized to int8 on the way (`quantize_rows_int8`), and sums of groups are exact.
    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, an unknown layout or activation).
    """
    if not isinstance(packed, serving.PackedInt4Weight):
        raise TypeError(f"packed must be a PackedInt4Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    parts = (packed.data, packed.scales, packed.zeros, packed.N, packed.K, packed.group_size)
    out: Tensor = operator("int4_linear")(x, *parts, bias, activation)
    return out
