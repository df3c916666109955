"""packed_linear: a linear layer on a packed weight. Activation functions and quantized weights are not part of it."""

import torch
from torch import Tensor

import serving
from reference import checks
from reference.pack_linear_weight import pack_linear_weight, unpack_linear_weight

LAYOUTS = {2: "vnni2-n32k32", 1: "f32-n32k32"}  # by the k that lie side by side, the last size of the packed form


class PackedWeight(serving.PackedWeight):
    """What serving.packed says, with the functions of reference.pack_linear_weight."""

    @staticmethod
    def pack(weight: Tensor) -> "PackedWeight":
        """Pack a weight [N, K] of a float dtype."""
        data = pack_linear_weight(weight)
        return PackedWeight(data, LAYOUTS[data.shape[-1]], *weight.shape)

    def unpack(self) -> Tensor:
        """The weight [N, K], bit for bit."""
        return unpack_linear_weight(self.data, self.N, self.K)


def packed_linear(x: Tensor, packed: serving.PackedWeight, bias: Tensor | None = None) -> Tensor:
    """out[..., n] = sum_k x[..., k] w[n, k] + bias[n], summed in float32 and rounded once.

    x [..., K] of the weight's dtype and any strides, rank >= 1; bias [N] of any float dtype, or None; result [..., N].
    Raises TypeError (dtypes, a plain tensor for the weight), ValueError (shapes).
    """
    if not isinstance(packed, serving.PackedWeight):
        raise TypeError(f"packed must be a PackedWeight, got {type(packed).__name__}")
    if packed.layout not in LAYOUTS.values():
        raise ValueError(f"packed has the unknown layout {packed.layout!r}")
    weight = unpack_linear_weight(packed.data, packed.N, packed.K)
    checks.is_tensor("x", x)
    checks.same_dtype({"packed_weight": weight, "x": x})
    checks.has_columns("x", x, packed.K)
    checks.linear_bias(bias, packed.N)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = x.to(wide, copy=True) @ weight.to(wide).T  # a copy: the bits do not depend on where x lies
    fresh = x.new_empty([*x.shape[:-1], packed.N])  # contiguous, also where matmul of an empty x is not
    return fresh.copy_(out if bias is None else out + bias.to(wide))
