"""fp8_linear: a linear layer on a packed weight of float8 codes with block scales. x is not quantized."""

import torch
from torch import Tensor

import serving
from reference import checks
from reference.fp8_to_float import fp8_to_float
from reference.pack_fp8_weight import check_scales, pack_fp8_weight, unpack_fp8_weight

LAYOUT = "e4m3-vnni2-n32k32"


class PackedFp8Weight(serving.PackedFp8Weight):
    """What serving.packed says, with the functions of reference.pack_fp8_weight."""

    @staticmethod
    def pack(weight: Tensor, scales: Tensor, block_size: tuple[int, int]) -> "PackedFp8Weight":
        """Pack a float8_e4m3fn weight [N, K] with a scale for each block of `block_size` outputs and columns."""
        if len(block_size) != 2:
            raise ValueError(f"block_size must hold two numbers, got {block_size}")
        data, kept = pack_fp8_weight(weight, scales, *block_size)
        N, K = weight.shape
        return PackedFp8Weight(data, kept, LAYOUT, N, K, (block_size[0], block_size[1]))

    def unpack(self) -> Tensor:
        """The codes [N, K], bit for bit."""
        return unpack_fp8_weight(self.data, self.N, self.K)


def fp8_linear(x: Tensor, packed: serving.PackedFp8Weight, bias: Tensor | None = None) -> Tensor:
    """out[..., n] = sum_k x[..., k] s w[n, k] + bias[n], s the scale of the block that w[n, k] lies in: float32, rounded once.

    x [..., K] of any float dtype and strides, rank >= 1; bias [N] of any float dtype, or None; result [..., N] in x's dtype.
    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes).
    """
    if not isinstance(packed, serving.PackedFp8Weight):
        raise TypeError(f"packed must be a PackedFp8Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    codes = unpack_fp8_weight(packed.data, packed.N, packed.K)
    check_scales(packed.scales, packed.N, packed.K, *packed.block_size)
    checks.is_tensor("x", x)
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.has_columns("x", x, packed.K)
    checks.linear_bias(bias, packed.N)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    weight = fp8_to_float(codes, wide) * _spread(packed).to(wide)
    out = x.to(wide, copy=True) @ weight.T  # a copy: the bits do not depend on where x lies
    fresh = x.new_empty([*x.shape[:-1], packed.N])  # contiguous, also where matmul of an empty x is not
    return fresh.copy_(out if bias is None else out + bias.to(wide))


def _spread(packed: serving.PackedFp8Weight) -> Tensor:
    """The scale of each weight, [N, K]."""
    outputs = torch.arange(packed.N) // packed.block_size[0]
    columns = torch.arange(packed.K) // packed.block_size[1]
    return packed.scales[outputs][:, columns]
