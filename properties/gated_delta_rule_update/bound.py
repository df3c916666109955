"""gated_delta_rule_update: how far a result may be from the truth."""

from functools import partial

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs, Within
from properties.gated_delta_rule_update.cases import DeltaCase, live_rows
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error, rounding


def bound(case: DeltaCase, given: Inputs, truth: Outputs, kept: float = 0.0) -> Bound:
    """|dS| <= c (G |S0| + |k| W^T) + t(0) =: E, |do| <= u |o| + scale (E + c |S|)^T |q| + t(0); a bfloat16 state adds 2^-8 |S|.

    With c = g(2 K + 16) + 2^-14, G = gamma (1 + |g|) + 2^-100 and W = beta (|v| + G |S0|^T |k|): the decay errs relatively by
    the error of g, at most 2^-15 |g|, and of one exp; S^T k and S^T q are float32 sums of K products of normalised numbers,
    whose norms are sums of K squares (2 K + 16 roundings in all); w inherits both, beta adds 2^-16; o is rounded once. Rows of
    pads are exact zeros. A state that is rounded before it is read adds `kept` |S| to E.
    """
    if case.exact and not kept:
        dtypes = {"out": getattr(torch, case.dtype), "state": getattr(torch, case.state_dtype)}
        return {name: rounding(truth[name], dtype) for name, dtype in dtypes.items()}
    rows = live_rows(given)
    slots = given["state_indices"][rows].long()
    turn = (lambda t: t.transpose(2, 3)) if given["state_layout"] == "vk" else (lambda t: t)
    before, after = turn(given["state"])[slots].abs(), turn(truth["state"])[slots].abs()
    K = given["q"].shape[2]
    q, k = (given[name][rows].abs() for name in ("q", "k"))
    if case.l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + case.eps) for x in (q, k))
    group = given["v"].shape[1] // given["q"].shape[1]
    q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    x = given["a"][rows] + given["dt_bias"]
    z = case.softplus_beta * x
    softplus = torch.where(z > case.softplus_threshold, x, (z.clamp(min=0) + (-z.abs()).exp().log1p()) / case.softplus_beta)
    g = -given["A_log"].exp() * softplus
    c = accumulation_error(2 * K + 16) + 2.0**-14
    G = (g.exp() * (1 + g.abs()) + 2.0**-100)[..., None, None]
    p = torch.einsum("nhkv,nhk->nhv", G * before, k)
    W = given["b"][rows].sigmoid()[..., None] * (given["v"][rows].abs() + p)
    E = c * (G * before + k[..., None] * W[..., None, :]) + flush_error(torch.zeros_like(before), torch.float32)
    E += kept * after
    scale = K**-0.5 if case.scale is None else case.scale
    dtype = getattr(torch, case.dtype)
    o = truth["out"][rows].abs()
    read = scale * torch.einsum("nhkv,nhk->nhv", E + c * after, q)
    out = torch.zeros_like(truth["out"])
    out[rows] = UNIT_ROUNDOFF[dtype] * o + read + flush_error(torch.zeros_like(o), dtype)
    state = torch.zeros_like(truth["state"])
    turn(state)[slots] = E + (2.0**-8 * after if case.state_dtype == "bfloat16" else 0.0)
    return {"out": out, "state": state}


ROUNDED_STATE = "state rounded to bfloat16 after each token"
# To nearest, of a state that is itself a little off.
TRUTH = Within(
    bound,
    sharp=lambda case: case.exact or case.dtype == "float32",
    roundings={ROUNDED_STATE: Within(partial(bound, kept=2.0**-8 * (1 + 2.0**-6)))},
)
