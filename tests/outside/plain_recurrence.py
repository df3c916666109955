"""Convolutions and delta rules as anybody would write them in torch, one request after the other. Nothing may be said against
them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from kernelpair.providers.provider import adapts

NAME = "plain recurrence"
FAR = -80.0


def unpacked(data: Tensor, dim: int, width: int) -> Tensor:
    """The weight [dim, w] of panels of 32 channels."""
    return data.transpose(1, 2).reshape(data.shape[0] * 32, -1)[:dim, :width].contiguous()


def convolved(history: Tensor, tokens: Tensor, weight: Tensor, bias: Tensor | None, activated: bool) -> Tensor:
    """[dim, n] in float32 by torch's convolution, of tokens behind w-1 others."""
    dim, width = weight.shape
    both = torch.cat([history[:, history.shape[1] - (width - 1) :], tokens], 1).float()
    found = conv1d(both[None], weight.float()[:, None], None if bias is None else bias.float(), groups=dim)[0]
    return torch.where(found < FAR, found * found.exp(), silu(found)) if activated else found  # there torch's own is 0


@adapts("causal_conv1d", limits={"packing": lambda case: case.form == "pack"}, fit=lambda case: replace(case, form="update"))
def causal_conv1d(form: str, **given: Any) -> Tensor:
    """an update is a sequence of one token"""
    x, states, indices, pad_slot = (given[name] for name in ("x", "conv_states", "cache_indices", "pad_slot"))
    weight, out = unpacked(given["packed_weight"], given["dim"], given["width"]), torch.zeros_like(x)
    rows, new = (x[..., None], out[..., None]) if form == "update" else (x, out)
    starts = given["query_start_loc"].tolist() if form == "varlen" else [0, rows.shape[-1]]
    for b in range(len(starts) - 1 if form == "varlen" else len(rows)):
        start, end = starts[b : b + 2] if form == "varlen" else starts
        slot = b if indices is None or start == end else int(indices[b])
        if start == end or (indices is not None and slot == pad_slot):
            continue
        initial = form == "update" or (given["has_initial_state"] is not None and bool(given["has_initial_state"][b]))
        tokens, into = ((side if form == "varlen" else side[b])[:, start:end] for side in (rows, new))
        history = torch.zeros_like(tokens[:, :1]).repeat(1, given["width"] - 1) if states is None else states[slot].clone()
        history = history if initial else torch.zeros_like(history)
        into.copy_(convolved(history, tokens, weight, given["bias"], given["silu_activation"]))
        if states is not None:
            states[slot] = torch.cat([history, tokens], 1)[:, end - start :]
    return laid(out, x, form)


def laid(out: Tensor, x: Tensor, form: str) -> Tensor:
    """The result, dense over channels where x is, else over tokens; of an update over requests where they alone are dense."""
    if form == "update":
        return out.t().contiguous().t() if x.stride(0) == 1 and x.stride(1) != 1 else out.contiguous()
    return out.mT.contiguous().mT if x.stride(-2) == 1 else out.contiguous()


@adapts("causal_conv1d_update_spec")
def causal_conv1d_update_spec(
    x: Tensor, conv_states: Tensor, packed_weight: Tensor, dim: int, width: int, bias: Tensor | None, query_start_loc: Tensor,
    cache_indices: Tensor, num_accepted_tokens: Tensor, silu_activation: bool = True, pad_slot: int | None = None,
) -> Tensor:
    """a view of the columns that were accepted, and a copy"""
    weight, out = unpacked(packed_weight, dim, width), torch.zeros_like(x)
    for b, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        slot = int(cache_indices[b])
        if start == end or slot == pad_slot:
            continue
        first, tokens = int(num_accepted_tokens[b]) - 1, x[start:end].t()
        history = conv_states[slot, :, first : first + width - 1].clone()
        out[start:end] = convolved(history, tokens, weight, bias, silu_activation).t()
        conv_states[slot, :, : width - 2 + end - start] = torch.cat([history[:, 1:], tokens], 1)
    return out.contiguous() if x.stride(1) == 1 or x.shape[1] == 1 else out.t().contiguous().t()


def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of all heads; state [H, K, V]."""
    state = state * g.exp()[:, None, None]
    state = state + k[..., None] * ((v - torch.einsum("hkv,hk->hv", state, k)) * beta[:, None])[:, None]
    return state, torch.einsum("hkv,hk->hv", state, q)


def prepared(x: Tensor, heads: int, normed: bool, eps: float) -> Tensor:
    """[T, heads, K] in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps) if normed else wide
    return wide.repeat_interleave(heads // x.shape[1], 1)


@adapts("chunk_gated_delta_rule")
def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, state_layout: str = "kv",
    use_qk_l2norm: bool = True, eps: float = 1e-5, scale: float | None = None, accurate: bool = False,
    initial_state: Tensor | None = None, state: Tensor | None = None, state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None, pad_slot: int | None = None,
) -> Any:
    """token after token, which is accurate always"""
    heads, width = v.shape[1:]
    queries, keys = (prepared(x, heads, use_qk_l2norm, eps) for x in (q, k))
    queries = queries * (q.shape[2] ** -0.5 if scale is None else scale)
    out, finals = torch.zeros(v.shape, dtype=q.dtype), []
    for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        pool = None if state is None else state if state_layout == "kv" else state.mT
        slot = -1 if state_indices is None or start == end else int(state_indices[n])
        if pool is not None and (start == end or slot == pad_slot):
            continue
        S = torch.zeros(heads, q.shape[2], width)
        if initial_state is not None:
            S = (initial_state[n] if state_layout == "kv" else initial_state[n].mT).float()
        elif pool is not None and has_initial_state is not None and has_initial_state[n]:
            S = pool[slot].float()
        for t in range(start, end):
            S, found = step(S, queries[t], keys[t], v[t].float(), g[t], beta[t].float())
            out[t] = found
        if pool is not None:
            pool[slot] = S
        finals.append(S if state_layout == "kv" else S.mT)
    if state is not None:
        return {"out": out}
    shape = (0, heads, *((q.shape[2], width) if state_layout == "kv" else (width, q.shape[2])))
    final = torch.stack(finals) if finals else torch.zeros(shape)
    return out, final.to(torch.float32 if initial_state is None else initial_state.dtype).contiguous()


@adapts("gated_delta_rule_update_spec")
def gated_delta_rule_update_spec(
    A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor, state_indices: Tensor,
    num_accepted_tokens: Tensor, query_start_loc: Tensor, state_layout: str = "kv", use_qk_l2norm: bool = True,
    eps: float = 1e-5, scale: float | None = None, softplus_beta: float = 1.0, softplus_threshold: float = 20.0,
    pad_slot: int | None = None,
) -> Tensor:
    """all states are read before the first is written"""
    out, pool = torch.zeros(v.shape, dtype=q.dtype), state if state_layout == "kv" else state.mT
    x = a.float() + dt_bias.float()
    softplus = torch.where(softplus_beta * x > softplus_threshold, x, torch.logaddexp(softplus_beta * x, x * 0) / softplus_beta)
    decays, strengths = -A_log.float().exp() * softplus, b.float().sigmoid()
    queries, keys = (prepared(side, v.shape[1], use_qk_l2norm, eps) for side in (q, k))
    queries = queries * (q.shape[2] ** -0.5 if scale is None else scale)
    starts = query_start_loc.tolist()
    live = [r for r in range(len(starts) - 1) if starts[r] < starts[r + 1] and int(state_indices[r, 0]) != pad_slot]
    held = {r: pool[int(state_indices[r, int(num_accepted_tokens[r]) - 1])].float() for r in live}
    for r in live:
        for i, t in enumerate(range(starts[r], starts[r + 1])):
            held[r], found = step(held[r], queries[t], keys[t], v[t].float(), decays[t], strengths[t])
            out[t] = found
            pool[int(state_indices[r, i])] = held[r]
    return out
