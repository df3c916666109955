"""gdn_gating: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.gdn_gating.cases import GatingCase
from properties.shared.attention_bound import EXP_ERROR, UNIT_ROUNDOFF, flush_error

FLAT = -100.0  # below it the slope of log(softplus) is 1; far below both sides of its quotient underflow


def bound(case: GatingCase, given: Inputs, truth: Outputs) -> Bound:
    """|dg| <= (3 2^-18 + 2^-22 + 2^-23 s |z|) |g| + 2^-125 (1 + exp(A_log) / softplus_beta), |dbeta| <= (u + 2^-16) beta + t(0);
    where exp(A_log) is below 2^-126 g may be 0.

    exp, log1p and exp(A_log) err by 2^-18 each at most, and a relative error of exp(z) is no larger in log(1 + exp(z)); four
    more operations round by 2^-24. x = a + dt_bias and z = softplus_beta x are rounded too: z is off by 2^-23 |z|, and g by that
    times the slope s of log(softplus): sigmoid(z) / log(1 + exp(z)), or 1 / z above the threshold.
    Results below 2^-126 may be flushed, before or after they are scaled.
    """
    flushed = 2.0**-125 * (1 + given["A_log"].exp() / case.softplus_beta)
    z = case.softplus_beta * (given["a"] + given["dt_bias"])
    below = torch.where(z < FLAT, 1.0, z.sigmoid() / z.exp().log1p())
    slope = torch.where(z > case.softplus_threshold, 1 / z.abs(), below)
    u = UNIT_ROUNDOFF[getattr(torch, case.dtype)]
    beta, g = truth["beta"], truth["g"].abs()
    lost = torch.where(given["A_log"].exp() < 2.0**-126 * (1 + EXP_ERROR), g, 0.0)
    return {
        "g": (3 * EXP_ERROR + 2.0**-22 + 2.0**-23 * slope * z.abs()) * g + flushed + lost,
        "beta": (u + 2.0**-16) * beta + flush_error(torch.zeros_like(beta), getattr(torch, case.dtype)),
    }
