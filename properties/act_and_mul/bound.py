"""act_and_mul: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.act_and_mul.cases import ActCase
from properties.shared.attention_bound import EXP_ERROR, SMALLEST_NORMAL, UNIT_ROUNDOFF, flush_error

SATURATED = 32.0  # from here on exp(-x) is lost beside 1


def bound(case: ActCase, given: Inputs, truth: Outputs) -> Bound:
    """With z the first and y the second half, and A = |z y|:

        silu:  |do| <= (u + 2^-17 + 2^-22) |o| + 2^-126 |y| (128 + |z|) + t(|z| + |y|)
        gelus: |do| <= (u + 2^-22) |o| + (2^-18 + 2^-21) A / 2 + t(|z| + |y|)

    silu errs by 2^-17 of itself, and where exp saturates by 2^-126 (128 + |z|); the product and the last steps round by less
    than 2^-22. erf and tanh err by 2^-18, absolutely: 1 + erf cancels for negative z, so gelu's term is relative to z and not
    to the result. Its argument is off by a few 2^-24 of itself, which moves erf or tanh by that times |argument| times the
    slope, a product below 1/2; with the rounding of the sum that stays below 2^-21.
    From z = 32 on silu is z: the result is z y in float32, cast. At z = 0 all are 0.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    z, y = given["x"].chunk(2, dim=-1)
    out = truth["out"]
    if given["activation"] == "silu":
        relative, absolute = 2.0**-17 + 2.0**-22, SMALLEST_NORMAL * y.abs() * (128 + z.abs())
    else:
        relative, absolute = 2.0**-22, (EXP_ERROR + 2.0**-21) / 2 * (z * y).abs()
    tolerance = (UNIT_ROUNDOFF[dtype] + relative) * out.abs() + absolute + flush_error(z.abs() + y.abs(), dtype)
    if given["activation"] == "silu":
        exact = ((z * y).to(torch.float32).to(dtype).double() - out).abs() + SMALLEST_NORMAL
        tolerance = torch.where(z >= SATURATED, exact, tolerance)
    return {"out": tolerance.masked_fill(z == 0, 0.0)}
