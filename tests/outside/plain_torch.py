"""Kernels as anybody would write them in torch, from the definitions alone: nothing may be said against them."""

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from kernelpair.providers.provider import adapts

NAME = "plain torch"


@adapts("rms_norm")
def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, gate: Tensor | None = None,
    group_size: int | None = None, gemma: bool = False, in_place: bool = False,
) -> Tensor | None:
    """F.silu gives other bits at the end of a tensor than within, and eps counts as it is"""
    s = x.float()
    if residual is not None:
        residual.copy_(s + residual.float())
        s = residual.float()
    size = group_size or max(x.shape[-1], 1)
    groups = s.unflatten(-1, (x.shape[-1] // size, size)) if x.shape[-1] else s[..., None]
    out = (groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + eps)).reshape(x.shape)
    if weight is not None:
        out = out * (1 + weight.float() if gemma else weight.float())
    if gate is not None:
        out = out * silu(gate.float())
    if not in_place:
        return out.to(x.dtype).contiguous()
    x.copy_(out)
    return None


@adapts("rotary_embedding")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, cos_sin_cache: Tensor, is_neox: bool = True,
    mrope_section: list[int] | None = None, mrope_interleaved: bool = False,
) -> None:
    """one head after the other"""
    rotary, pairs = cos_sin_cache.shape[1], cos_sin_cache.shape[1] // 2
    axis = torch.zeros(pairs, dtype=torch.int64)
    if mrope_section is not None:
        j, (a, b, e) = torch.arange(pairs), mrope_section
        axis = (j >= a).long() + (j >= a + b).long()
        if mrope_interleaved:
            axis = ((j % 3 == 1) & (j < 3 * b)).long() + 2 * ((j % 3 == 2) & (j < 3 * e)).long()
    rows = cos_sin_cache[(positions if positions.dim() == 2 else positions[None]).long()].float()  # [axes, T, R]
    cosine, sine = (rows[axis, :, first + torch.arange(pairs)].T[:, None] for first in (0, pairs))
    first, second = (slice(0, pairs), slice(pairs, rotary)) if is_neox else (slice(0, rotary, 2), slice(1, rotary, 2))
    for heads in (query, key):
        if heads is not None:
            x, y = heads[..., first].float(), heads[..., second].float()
            heads[..., first], heads[..., second] = x * cosine - y * sine, y * cosine + x * sine


@adapts("topk_gating")
def topk_gating(
    logits: Tensor, topk: int, scoring: str = "softmax", renormalize: bool = True, correction_bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, scaling_factor: float = 1.0, num_valid: int | None = None,
) -> tuple[Tensor, Tensor]:
    """a sort, and renormalized weights that are a softmax of their own"""
    tokens, valid = len(logits), len(logits) if num_valid is None else num_valid
    weights, ids = torch.zeros(tokens, topk), torch.full((tokens, topk), -1, dtype=torch.int32)
    rows = logits[:valid].float()
    scores = (rows.softmax(-1) if scoring == "softmax" else rows.sigmoid()).nan_to_num(0.0)
    choice = scores if correction_bias is None else scores + correction_bias.float()
    if num_expert_group > 1:
        groups = choice.unflatten(-1, (num_expert_group, -1))
        best = groups.amax(-1) if correction_bias is None else groups.topk(2, -1).values.sum(-1)
        kept = best.sort(dim=-1, descending=True, stable=True).indices[:, :topk_group]
        out = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
        choice = groups.masked_fill(out[..., None], -torch.inf).flatten(1)
    chosen = choice.sort(dim=-1, descending=True, stable=True).indices[:, :topk]
    found = scores.gather(1, chosen)
    if renormalize and scoring == "softmax":
        found = rows.gather(1, chosen).softmax(-1).nan_to_num(0.0)
    elif renormalize:
        total = found.sum(-1, keepdim=True)
        found = torch.where(total > 0, found / total, 0.0)
    weights[:valid], ids[:valid] = found * scaling_factor, chosen.int()
    return weights, ids


@adapts("quantize_rows_int8")
def quantize_rows_int8(x: Tensor, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """no zero points are None"""
    rows, whole = x.float(), torch.tensor(127.0 if symmetric else 255.0)
    ends = torch.cat([rows, torch.zeros(len(rows), 1)], dim=-1)
    low, high = ends.amin(-1), ends.amax(-1)
    width = torch.maximum(torch.maximum(-low, high) if symmetric else high - low, torch.tensor(1e-7))
    steps = torch.div(whole.expand_as(width), width)
    q, points = torch.round(rows * steps[:, None]), torch.round(-128 - low * steps)
    if not symmetric:
        q = q + points[:, None]
    scale = torch.where(rows.isfinite().all(-1), torch.div(width, whole), torch.nan)
    q = q.nan_to_num(0.0).clamp(-128, 127).to(torch.int8)
    return q, scale, None if symmetric else points.nan_to_num(0.0).int()


@adapts("fp8_to_float")
def fp8_to_float(w: Tensor, dtype: torch.dtype) -> Tensor:
    """torch's own conversion, with the NaN that it makes"""
    return w.float().to(dtype).contiguous()


@adapts("act_and_mul")
def act_and_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """torch's own activations, whose vectors double z on the way"""
    z, y = x.float().chunk(2, dim=-1)
    plain = silu(z) if activation == "silu" else gelu(z, approximate="tanh" if activation == "gelu_tanh" else "none")
    return (torch.where(z > 1e30, z, plain) * y).to(x.dtype).contiguous()


@adapts("gdn_gating")
def gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, softplus_beta: float = 1.0, softplus_threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """whole vectors and the ends of rows go through different exponentials"""
    x = a.float() + dt_bias.float()
    z = softplus_beta * x
    softplus = torch.where(z > softplus_threshold, x, torch.logaddexp(z, torch.zeros(())) / softplus_beta)
    return (-A_log.float().exp() * softplus).contiguous(), b.float().sigmoid().to(b.dtype).contiguous()


@adapts("packed_linear")
def packed_linear(x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None) -> Tensor:
    """the weight unpacked, and a product in float32"""
    panels, slices, halves, steps, outputs, r = packed_weight.shape
    weight = packed_weight.permute(0, 2, 4, 1, 3, 5).reshape(panels * halves * outputs, slices * steps * r)[:N, :K]
    return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype).contiguous()


@adapts("gated_delta_rule_update")
def gated_delta_rule_update(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    state_layout: str = "kv", use_qk_l2norm: bool = True, eps: float = 1e-6, scale: float | None = None,
    softplus_beta: float = 1.0, softplus_threshold: float = 20.0, pad_slot: int | None = None,
) -> Tensor:
    """one request after the other"""
    out, repeats = torch.zeros_like(v, dtype=q.dtype, memory_format=torch.contiguous_format), v.shape[1] // q.shape[1]
    g, _ = gdn_gating(A_log, a, b, dt_bias, softplus_beta, softplus_threshold)
    for i, slot in enumerate(state_indices.tolist()):
        if slot == pad_slot:
            continue
        rows, keys = q[i].float(), k[i].float()
        if use_qk_l2norm:
            rows, keys = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps) for x in (rows, keys))
        rows = (rows * (q.shape[2] ** -0.5 if scale is None else scale)).repeat_interleave(repeats, 0)
        keys = keys.repeat_interleave(repeats, 0)
        held = state[slot] if state_layout == "kv" else state[slot].mT  # [HV, K, V]
        decayed = held.float() * g[i].exp()[:, None, None]
        new = (v[i].float() - torch.einsum("hkv,hk->hv", decayed, keys)) * b[i].float().sigmoid()[:, None]
        found = decayed + keys[..., None] * new[:, None]
        held.copy_(found)
        out[i] = torch.einsum("hkv,hk->hv", found, rows)
    return out
