"""int4_linear: a linear layer on a packed weight of four-bit codes, with a scale and a zero point for each group of columns."""

import torch
from torch import Tensor
from torch.nn.functional import pad

import serving
from reference import checks
from reference.pack_int4_weight import pack_int4_weight, unpack_int4_weight
from reference.quantize_rows_int8 import quantize_rows_int8

LAYOUT = "nib2-n32k32"
ACTIVATIONS = ("x", "int8")


class PackedInt4Weight(serving.PackedInt4Weight):
    """What serving.packed says, with the functions of reference.pack_int4_weight."""

    @staticmethod
    def pack(codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int) -> "PackedInt4Weight":
        """Pack codes [N, K] with scales and zero points [N, ceil(K / group_size)]; a group_size of -1 is K."""
        data, kept_scales, kept_zeros = pack_int4_weight(codes, scales, zeros, group_size)
        N, K = codes.shape
        return PackedInt4Weight(data, kept_scales, kept_zeros, LAYOUT, N, K, K if group_size == -1 else group_size)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        """The codes [N, K], scales in float32 and zero points [N, G]."""
        return unpack_int4_weight(self.data, self.scales, self.zeros, self.N, self.K, self.group_size)


def int4_linear(x: Tensor, packed: serving.PackedInt4Weight, bias: Tensor | None = None, activation: str = "x") -> Tensor:
    """out[..., n] = sum_k x[..., k] s (c - z)[n, k] + bias[n], s and z those of k's group: float32, rounded once to x's dtype.

    x [..., K] of any float dtype and strides, rank >= 1; bias [N] of any float dtype, or None. With activation "int8" x is what
    quantize_rows_int8 makes of its rows: each group's sum of q (c - z) is exact, then times s, summed, and times x's scale.
    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, an unknown activation).
    """
    if not isinstance(packed, serving.PackedInt4Weight):
        raise TypeError(f"packed must be a PackedInt4Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    codes, scales, zeros = unpack_int4_weight(
        packed.data, packed.scales, packed.zeros, packed.N, packed.K, packed.group_size
    )
    checks.one_of("activation", activation, ACTIVATIONS)
    checks.is_tensor("x", x)
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.has_columns("x", x, packed.K)
    checks.linear_bias(bias, packed.N)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    size = packed.K if packed.group_size == -1 else min(packed.group_size, packed.K)
    group = torch.arange(packed.K) // size  # of each column
    steps = codes.to(torch.float64) - zeros[:, group].to(torch.float64)
    if activation == "x":
        weight = steps.to(wide) * scales[:, group].to(wide)
        out = x.to(wide, copy=True) @ weight.T  # a copy: the bits do not depend on where x lies
    else:
        out = _exact_groups(x, steps, scales.to(wide), size)
    fresh = x.new_empty([*x.shape[:-1], packed.N])  # contiguous, also where matmul of an empty x is not
    return fresh.copy_(out if bias is None else out + bias.to(wide))


def _exact_groups(x: Tensor, steps: Tensor, scales: Tensor, size: int) -> Tensor:
    """Rows in int8 times whole numbers [N, K]: a group's sum is exact in float64, all else in `scales`' dtype."""
    K = x.shape[-1]
    q, scale, _ = quantize_rows_int8(x.reshape(-1, K).contiguous())
    by_group = (pad(rows.to(torch.float64), (0, -K % size)).unflatten(-1, (-1, size)) for rows in (q, steps))
    sums = torch.einsum("mgk,ngk->mng", *by_group)
    out = (sums.to(scales.dtype) * scales).sum(-1) * scale[:, None].to(scales.dtype)
    return out.reshape(*x.shape[:-1], len(steps))
