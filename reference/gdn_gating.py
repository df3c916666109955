"""gdn_gating: the decay and the write strength of a gated delta rule, from a layer's raw gate activations."""

import math

import torch
from torch import Tensor

from reference import checks


def gdn_gating(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """`g = -exp(A_log) softplus(a + dt_bias)` in float32 and `beta = sigmoid(b)` in b's dtype, each [N, HV].

    a, b [N, HV], any strides; A_log, dt_bias [HV], in a's dtype or float32. softplus(x) is x where
    `softplus_beta x > softplus_threshold`, else `log(1 + exp(softplus_beta x)) / softplus_beta`, computed so that neither end
    overflows or loses relative accuracy. (float64 in, float64 out: that is the truth.)
    Raises TypeError (dtypes), ValueError (shapes, softplus_beta not finite and > 0, a NaN threshold).
    """
    checks.is_tensor("a", a, 2)
    checks.is_tensor("b", b, 2)
    checks.same_dtype({"a": a, "b": b})
    N, HV = a.shape
    checks.has_shape("b", b, [N, HV])
    checks.parameter_vector("A_log", A_log, HV, a.dtype)
    checks.parameter_vector("dt_bias", dt_bias, HV, a.dtype)
    checks.positive("softplus_beta", softplus_beta)
    checks.is_number("softplus_threshold", softplus_threshold)
    if math.isnan(softplus_threshold):
        raise ValueError("softplus_threshold must not be NaN")

    compute = torch.promote_types(a.dtype, torch.float32)
    x = a.to(compute) + dt_bias.to(compute)
    z = softplus_beta * x
    softplus = (z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))) / softplus_beta  # = log1p(exp(z)) / softplus_beta
    g = -torch.exp(A_log.to(compute)) * torch.where(z > softplus_threshold, x, softplus)
    beta = 1 / (1 + torch.exp(-b.to(compute)))
    return g.contiguous(), beta.to(b.dtype).contiguous()
