"""act_and_mul: the first half of each row through an activation, times the second half."""

import math

import torch
from torch import Tensor

from reference import checks

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def act_and_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """`o = f(x[..., :d]) x[..., d:]` for x [..., 2 d] of one to four dimensions; contiguous, in x's dtype, rounded once.

    f: `silu` x / (1 + exp(-x)); `gelu` x/2 (1 + erf(x / sqrt 2)); `gelu_tanh` x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
    (float64 in, float64 out: that is the truth.) Raises TypeError (dtypes, types) and ValueError (shapes, strides, activation).
    """
    checks.is_tensor("x", x)
    if not 1 <= x.dim() <= 4:
        raise ValueError(f"x must have 1 to 4 dimensions, got shape {list(x.shape)}")
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.dense_last_dim("x", x)
    if x.shape[-1] % 2:
        raise ValueError(f"the last dimension of x must be even, got {x.shape[-1]}")
    if not isinstance(activation, str):
        raise TypeError(f"activation must be a str, got {type(activation).__name__}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation = {activation!r} is none of {', '.join(ACTIVATIONS)}")

    z, y = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    if activation == "silu":
        f = z / (1 + torch.exp(-z))
    elif activation == "gelu":
        f = z / 2 * torch.erfc(-z / math.sqrt(2))  # 1 + erf(a) = erfc(-a), which does not cancel
    else:
        f = z / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return (f * y).to(x.dtype).contiguous()
