"""gated_delta_rule_update_spec: how far a result may be from the truth."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs, Within
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase, live_requests
from properties.shared.attention_bound import SMALLEST_NORMAL, UNIT_ROUNDOFF, accumulation_error, flush_error, rounding


@dataclass(frozen=True)
class Operands:
    """Of all tokens, each [T, HV, ..] in float64."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def _operands(case: DeltaSpecCase, given: Inputs) -> Operands:
    q, k = given["q"], given["k"]
    if case.l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + case.eps) for x in (q, k))
    q, k = (x.repeat_interleave(given["v"].shape[1] // x.shape[1], dim=1) for x in (q, k))
    x = given["a"] + given["dt_bias"]
    z = case.softplus_beta * x
    softplus = torch.where(z > case.softplus_threshold, x, (z.clamp(min=0) + (-z.abs()).exp().log1p()) / case.softplus_beta)
    return Operands(q, k, given["v"], -given["A_log"].exp() * softplus, given["b"].sigmoid())


def bound(case: DeltaSpecCase, given: Inputs, truth: Outputs) -> Bound:
    """For token i of a request, with S0 the state before it, S the state after it, E of a single step and E_{-1} = 0:

        E   = c (G |S0| + |k| W^T) + t(0)          c, G and W as in gated_delta_rule_update
        E_i = E + gamma (1 + c (1 + |g|)) (E_{i-1} + beta |k| (|k|^T E_{i-1}))
        |dS| <= E_i, |do| <= u |o| + scale (E_i + c |S|)^T |q| + t(0); a stored bfloat16 state adds 2^-8 |S|

    A step is linear in the state that it starts from: S = gamma (I - beta k k^T) S0 + .. An error of S0 goes through that, and
    through the step's own roundings, for E counts those of |S0|. What is stored is rounded once, and nobody reads it in this
    call.
    """
    if case.exact:
        dtypes = {"out": getattr(torch, case.dtype), "state": getattr(torch, case.state_dtype)}
        return {name: rounding(truth[name], dtype) for name, dtype in dtypes.items()}
    operands, vk = _operands(case, given), given["state_layout"] == "vk"
    starts, slots = given["query_start_loc"].tolist(), given["state_indices"].tolist()
    out, state = torch.zeros_like(truth["out"]), torch.zeros_like(truth["state"])
    pool, after = (x.transpose(2, 3) if vk else x for x in (given["state"], state))
    dtype, stored = getattr(torch, case.dtype), 2.0**-8 if case.state_dtype == "bfloat16" else 0.0
    scale, c = case.key_size**-0.5 if case.scale is None else case.scale, accumulation_error(2 * case.key_size + 16) + 2.0**-14
    for r in live_requests(given):
        S = pool[slots[r][int(given["num_accepted_tokens"][r]) - 1]].clone()
        error = torch.zeros_like(S)
        for i, t in enumerate(range(starts[r], starts[r + 1])):
            S, error = _step(operands, t, S, error, c)
            size, o = S.abs(), truth["out"][t].abs()
            out[t] = UNIT_ROUNDOFF[dtype] * o + scale * torch.einsum("hkv,hk->hv", error + c * size, operands.q[t].abs())
            out[t] += flush_error(torch.zeros_like(o), dtype)
            after[slots[r][i]] = error + stored * size
    return {"out": out, "state": state}


def _step(x: Operands, t: int, S0: Tensor, before: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """The state after token t, and its bound."""
    k, v, beta, g = x.k[t], x.v[t], x.beta[t][:, None], x.g[t]
    gamma = g.exp()[:, None, None]
    G = gamma * (1 + g.abs())[:, None, None] + 2.0**-100
    S = gamma * S0
    S = S + k[..., None] * ((v - torch.einsum("hkv,hk->hv", S, k)) * beta)[:, None]
    W = beta * (v.abs() + torch.einsum("hkv,hk->hv", G * S0.abs(), k.abs()))
    carried = before + k.abs()[..., None] * (beta * torch.einsum("hkv,hk->hv", before, k.abs()))[:, None]
    error = c * (G * S0.abs() + k.abs()[..., None] * W[:, None]) + 2 * SMALLEST_NORMAL
    return S, error + gamma * (1 + c * (1 + g.abs()))[:, None, None] * carried


TRUTH = Within(bound, sharp=lambda case: case.exact or case.dtype == "float32")
