"""int8_linear and int8_matmul: a linear layer of bytes. Sums are whole numbers and exact; scales and bias follow in float32."""

import torch
from torch import Tensor

import serving
from reference import checks
from reference.pack_int8_weight import pack_int8_weight, unpack_int8_weight
from reference.quantize_rows_int8 import quantize_rows_int8

LAYOUT = "vnni4-n32k64"


class PackedInt8Weight(serving.PackedInt8Weight):
    """What serving.packed says, with the functions of reference.pack_int8_weight."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedInt8Weight":
        """Pack an int8 weight [N, K]."""
        data, sums = pack_int8_weight(weight)
        return PackedInt8Weight(data, sums, LAYOUT, *weight.shape)

    def unpack(self) -> Tensor:
        """The weight [N, K], bit for bit."""
        return unpack_int8_weight(self.data, self.N, self.K)


def int8_matmul(
    q: Tensor,
    scale: Tensor,
    azp: Tensor | None,
    packed: serving.PackedInt8Weight,
    w_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """out[m, n] = sum_k (q[m, k] - azp[m]) w[n, k], exact, times scale[m] w_scale[n], plus bias[n]: rounded once.

    q int8 [M, K], dense in K; scale float32 [M]; azp int32 [M] in -128 .. 127, or None for 0; w_scale float32 [N]; bias [N] of
    any float dtype, or None. Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, strides, azp).
    """
    weight = _checked_weight(packed, w_scale, bias)
    checks.is_tensor("q", q, 2)
    checks.has_dtype("q", q, (torch.int8,))
    checks.dense_last_dim("q", q)
    checks.has_shape("q", q, [len(q), packed.K])
    checks.is_tensor("scale", scale, 1)
    checks.has_dtype("scale", scale, (torch.float32, torch.float64))
    checks.has_shape("scale", scale, [len(q)])
    if azp is not None:
        checks.is_tensor("azp", azp, 1)
        checks.has_dtype("azp", azp, (torch.int32,))
        checks.has_shape("azp", azp, [len(q)])
        outside = ((azp < -128) | (azp > 127)).nonzero()
        if len(outside):
            row = int(outside[0])
            raise ValueError(f"azp[{row}] = {int(azp[row])} is outside [-128, 127]")
    if out_dtype not in checks.FLOAT_DTYPES:
        raise TypeError(f"out_dtype must be a float dtype, got {out_dtype}")
    return _scaled(q, scale, azp, weight, w_scale, bias, scale.dtype).to(out_dtype)


def int8_linear(
    x: Tensor,
    packed: serving.PackedInt8Weight,
    w_scale: Tensor,
    bias: Tensor | None = None,
    symmetric: bool = True,
) -> Tensor:
    """quantize_rows_int8 of the rows of x [..., K], and int8_matmul of what it gives, in x's dtype: [..., N].

    x float, dense in K, rank >= 1. Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes, strides).
    """
    weight = _checked_weight(packed, w_scale, bias)
    checks.is_tensor("x", x)
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.has_columns("x", x, packed.K)
    checks.dense_last_dim("x", x)
    q, scale, azp = quantize_rows_int8(x.reshape(-1, packed.K), symmetric)
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = _scaled(q, scale, azp, weight, w_scale, bias, compute)
    return out.to(x.dtype).reshape(*x.shape[:-1], packed.N)


def _checked_weight(packed: serving.PackedInt8Weight, w_scale: Tensor, bias: Tensor | None) -> Tensor:
    if not isinstance(packed, serving.PackedInt8Weight):
        raise TypeError(f"packed must be a PackedInt8Weight, got {type(packed).__name__}")
    if packed.layout != LAYOUT:
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    weight = unpack_int8_weight(packed.data, packed.N, packed.K)
    checks.is_tensor("sums", packed.sums, 1)
    checks.has_dtype("sums", packed.sums, (torch.int32,))
    checks.has_shape("sums", packed.sums, [packed.N])
    checks.is_tensor("w_scale", w_scale, 1)
    checks.has_dtype("w_scale", w_scale, (torch.float32, torch.float64))
    checks.has_shape("w_scale", w_scale, [packed.N])
    checks.linear_bias(bias, packed.N)
    return weight


def _scaled(
    q: Tensor, scale: Tensor, azp: Tensor | None, weight: Tensor, w_scale: Tensor, bias: Tensor | None, compute: torch.dtype
) -> Tensor:
    """The exact sums times both scales, plus bias. Sums of K products stay below 2^31, which float64 holds."""
    centred = q.to(torch.float64) if azp is None else q.to(torch.float64) - azp[:, None].to(torch.float64)
    sums = (centred @ weight.to(torch.float64).T).to(compute)
    out = sums * w_scale.to(compute) * scale[:, None].to(compute)
    return out if bias is None else out + bias.to(compute)
