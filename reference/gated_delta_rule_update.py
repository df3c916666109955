"""gated_delta_rule_update: one recurrent decode step of the gated delta rule on a pool of states. One token a request."""

import math

import torch
from torch import Tensor

from reference import checks


def gated_delta_rule_update(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor,
    state_indices: Tensor,
    state_layout: str = "kv",
    use_qk_l2norm: bool = True,
    eps: float = 1e-5,
    scale: float | None = None,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    pad_slot: int | None = None,
) -> Tensor:
    """Decay each state, write k's correction into it, read it with q; returns o [B, HV, V] in q's dtype.

    q, k [B, HK, K]; v [B, HV, V], HV a multiple of HK; a, b [B, HV]; A_log, dt_bias [HV] in q's dtype or float32;
    state float32 or bfloat16, "kv": [slots, HV, K, V], "vk": [slots, HV, V, K]; state_indices [B].
    Value head n uses q/k head n // (HV // HK). With S = K x V, all in float32:
    `S = exp(g) S; w = (v - S^T k) sigmoid(b); S = S + k w^T; o = scale S^T q`, g as in gdn_gating, q and k each divided by
    `sqrt(sum of squares + eps)` if use_qk_l2norm; scale defaults to K^-1/2. Pads give o = 0 and leave the state alone.
    Raises TypeError (dtypes), ValueError (shapes, tags, scalars, a slot twice, overlap), IndexError (slot outside the pool).
    """
    check_step(
        A_log, dt_bias, q, k, v, a, b, state, state_layout, use_qk_l2norm, eps, scale, softplus_beta, softplus_threshold
    )
    checks.is_index("state_indices", state_indices, [len(q)])
    used = checks.written_slots("state_indices", state_indices, state.shape[0], pad_slot)
    read = {"A_log": A_log, "dt_bias": dt_bias, "q": q, "k": k, "v": v, "a": a, "b": b, "state_indices": state_indices}
    checks.disjoint({"state": state}, read)

    HK, K = q.shape[1:]
    B, HV, V = v.shape
    compute = torch.promote_types(q.dtype, torch.float32)
    slots = state_indices[used].long()
    qh, kh = (tensor[used].to(compute) for tensor in (q, k))  # [n, HK, K]
    if use_qk_l2norm:
        qh, kh = (tensor * torch.rsqrt((tensor * tensor).sum(-1, keepdim=True) + eps) for tensor in (qh, kh))
    qh, kh = (tensor.repeat_interleave(HV // HK, dim=1) for tensor in (qh, kh))  # [n, HV, K]
    x = a[used].to(compute) + dt_bias.to(compute)
    z = softplus_beta * x
    softplus = (z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))) / softplus_beta
    g = -torch.exp(A_log.to(compute)) * torch.where(z > softplus_threshold, x, softplus)  # [n, HV]
    beta = (1 / (1 + torch.exp(-b[used].to(compute))))[..., None]

    pool = state if state_layout == "kv" else state.transpose(2, 3)  # [slots, HV, K, V]
    S = torch.exp(g)[..., None, None] * pool[slots].to(compute)
    w = (v[used].to(compute) - torch.einsum("nhkv,nhk->nhv", S, kh)) * beta
    S = S + kh[..., None] * w[..., None, :]
    o = torch.einsum("nhkv,nhk->nhv", S, qh * (K**-0.5 if scale is None else scale))
    pool[slots] = S.to(state.dtype)
    out = q.new_zeros(B, HV, V)
    out[used] = o.to(q.dtype)
    return out


def check_step(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_layout: str,
    use_qk_l2norm: bool, eps: float, scale: float | None, softplus_beta: float, softplus_threshold: float,
) -> None:
    """Every check of the contract but those of slots and overlap; B counts tokens."""
    for name, tensor, rank in (("q", q, 3), ("k", k, 3), ("v", v, 3), ("a", a, 2), ("b", b, 2), ("state", state, 4)):
        checks.is_tensor(name, tensor, rank)
    checks.same_dtype({"q": q, "k": k, "v": v, "a": a, "b": b})
    checks.state_dtype("state", state, q.dtype)
    B, HK, K = q.shape
    HV, V = v.shape[1:]
    if min(HK, K, V) < 1 or HV < 1 or HV % HK:
        raise ValueError(f"v has {HV} heads of {V}, q has {HK} of {K}: need at least one, and a multiple of q's heads")
    checks.has_shape("k", k, [B, HK, K])
    checks.has_shape("v", v, [B, HV, V])
    checks.has_shape("a", a, [B, HV])
    checks.has_shape("b", b, [B, HV])
    checks.parameter_vector("A_log", A_log, HV, q.dtype)
    checks.parameter_vector("dt_bias", dt_bias, HV, q.dtype)
    checks.is_bool("use_qk_l2norm", use_qk_l2norm)
    checks.one_of("state_layout", state_layout, ("kv", "vk"))
    checks.has_shape("state", state, [state.shape[0], HV, *((K, V) if state_layout == "kv" else (V, K))])
    for name, tensor in (("q", q), ("k", k), ("v", v), ("state", state)):
        checks.dense_last_dim(name, tensor)
    for name, value in (("scale", K**-0.5 if scale is None else scale), ("eps", eps), ("softplus_beta", softplus_beta)):
        checks.positive(name, value)
    checks.is_number("softplus_threshold", softplus_threshold)
    if math.isnan(softplus_threshold):
        raise ValueError("softplus_threshold must not be NaN")
