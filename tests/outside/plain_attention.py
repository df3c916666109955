"""Attention as anybody would write it in torch: a softmax, and then a product. Nothing may be said against it."""

import torch
from torch import Tensor

from kernelpair.providers.provider import adapts

NAME = "plain attention"
FAR = 1 << 40  # a window of more is one of all keys


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, cap: float = 0.0, sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """q [n, H, D], k [m, Hkv, D], v [m, Hkv, Dv], mask [n, m] of what is seen, bias [H, n, m] -> float32 [n, H, Dv]

    The weights are divided by their sum before they meet the values.
    """
    n, H, m = len(q), q.shape[1], len(k)
    repeats = H // k.shape[1]
    keys, values = (x.float().repeat_interleave(repeats, 1) for x in (k, v))
    z = torch.einsum("nhd,mhd->hnm", q.float(), keys) * scale
    if cap > 0:
        z = cap * torch.tanh(z / cap)
    if bias is not None:
        z = z + bias
    if mask is not None:
        z = z.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        z = torch.cat([z, sinks.float()[:, None, None].expand(H, n, 1)], -1)
    seen = torch.ones(n, m, dtype=torch.bool) if mask is None else mask
    weights = z.softmax(-1)[..., :m].masked_fill(~seen.any(-1)[:, None], 0.0)
    return torch.einsum("hnm,mhd->nhd", weights, values)


def sees(positions: Tensor, keys: Tensor, left: int, right: int) -> Tensor:
    """Which of the keys a row at each position sees, [rows, keys]; -1 bounds nothing."""
    seen = torch.ones(len(positions), len(keys), dtype=torch.bool)
    if left >= 0:
        seen &= keys >= positions[:, None] - min(left, FAR)
    if right >= 0:
        seen &= keys <= positions[:, None] + min(right, FAR)
    return seen


@adapts("flash_attn_varlen")
def flash_attn_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, causal_requests: Tensor | None = None,
    alignment: str = "bottom_right", window_left: int = -1, window_right: int = -1, softcap: float = 0.0,
) -> Tensor:
    """request by request"""
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out, rows, keys = q.new_zeros(*q.shape[:2], v.shape[2]), cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(rows) - 1):
        own, theirs = slice(rows[b], rows[b + 1]), slice(keys[b], keys[b + 1])
        lq, lk = rows[b + 1] - rows[b], keys[b + 1] - keys[b]
        right = 0 if causal or (causal_requests is not None and causal_requests[b]) else window_right
        positions = torch.arange(lq) + (lk - lq if alignment == "bottom_right" else 0)
        mask = sees(positions, torch.arange(lk), window_left, right)
        out[own] = attend(q[own], k[theirs], v[theirs], scale, mask, softcap, sinks)
    return out


@adapts("extend_attention")
def extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
) -> None:
    """cached and new keys side by side"""
    for b, (length, new, start) in enumerate(zip(seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist())):
        own, columns = slice(start, start + new), req_to_token[int(req_pool_indices[b])]
        off = 0 if encoder_lens is None or not new else int(encoder_lens[b])
        if not new:
            continue
        if is_cross_attn:
            slots = columns[:off].long()
            out[own] = attend(q[own], k_cache[slots], v_cache[slots], sm_scale, None, logit_cap, sinks).to(out.dtype)
            continue
        assert k is not None and v is not None
        first = min(max(0, length - new - sliding_window + 1) if sliding_window > 0 else 0, length - new)
        slots = columns[off + first : off + length - new].long()
        keys, values = k[own], v[own]
        if len(slots):
            keys, values = torch.cat([k_cache[slots], keys]), torch.cat([v_cache[slots], values])
        mask = sees(torch.arange(length - new, length), torch.arange(first, length), max(sliding_window, 0) - 1, 0)
        out[own] = attend(q[own], keys, values, sm_scale, mask, logit_cap, sinks).to(out.dtype)


@adapts("decode_attention")
def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, key: Tensor | None, value: Tensor | None, loc: Tensor | None,
    attn_logits: Tensor, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, encoder_lens: Tensor | None,
    sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0, is_cross_attn: bool = False,
    pad_slot: int | None = None,
) -> None:
    """new keys first, then request by request"""
    live = torch.ones(len(q), dtype=torch.bool) if pad_slot is None or loc is None else loc != pad_slot
    if key is not None and loc is not None:
        k_cache[loc[live].long()] = key[live]
        if value is not None and k_cache.data_ptr() != v_cache.data_ptr():
            v_cache[loc[live].long()] = value[live]
    out.zero_()
    for b in live.nonzero()[:, 0].tolist():
        off, length = 0 if encoder_lens is None else int(encoder_lens[b]), int(seq_lens[b])
        first = off + max(0, length - sliding_window) if sliding_window > 0 else off
        seen = slice(0, off) if is_cross_attn else slice(first, off + length)
        slots = req_to_token[int(req_pool_indices[b]), seen].long()
        if len(slots):
            out[b] = attend(q[b : b + 1], k_cache[slots], v_cache[slots], sm_scale, None, logit_cap, sinks)[0]


@adapts("mla_decode")
def mla_decode(
    q_nope: Tensor, q_pe: Tensor, kv_cache: Tensor, seq_lens: Tensor, page_table: Tensor, workspace: Tensor, sm_scale: float,
    num_kv_splits: int = -1, accurate: bool = False,
) -> Tensor:
    """one query of both parts over the pages of a request"""
    q, out, latent, page = torch.cat([q_nope, q_pe], -1), torch.zeros_like(q_nope), q_nope.shape[2], kv_cache.shape[1]
    for b, length in enumerate(seq_lens.tolist()):
        pages = page_table[b, : -(-length // page)].long()
        latents = kv_cache[pages].flatten(0, 1)[:length, None]
        out[b] = attend(q[b : b + 1], latents, latents[..., :latent], sm_scale)[0]
    return out.contiguous()


@adapts("paged_attention")
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor | int, cu_seqlens_q: Tensor | None,
    qv: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None, sinks: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_left: int = -1, window_right: int = -1,
    softcap: float = 0.0, num_splits: int = 0, alibi_slopes: Tensor | None = None,
) -> Tensor:
    """over the pages that any row of a request sees"""
    shape, batch, page, both = q.shape, len(page_table), k_cache.shape[1], q if qv is None else torch.cat([q, qv], -1)
    lengths = [cache_seqlens] * batch if isinstance(cache_seqlens, int) else cache_seqlens.tolist()
    rows = [b * shape[1] for b in range(batch + 1)] if cu_seqlens_q is None else cu_seqlens_q.tolist()
    both = both.flatten(0, -3)
    scale, right = both.shape[2] ** -0.5 if softmax_scale is None else softmax_scale, 0 if causal else window_right
    out = q.new_zeros(*both.shape[:2], v_cache.shape[3])
    for b, length in enumerate(lengths):
        own, new = slice(rows[b], rows[b + 1]), rows[b + 1] - rows[b]
        first = max(0, length - new - min(window_left, FAR)) if window_left >= 0 else 0
        if not new or first >= length:
            continue
        positions, j = torch.arange(new) + length - new, torch.arange(first, length)
        pages = page_table[b, j // page].long()
        keys, values = k_cache[pages, j % page].float(), v_cache[pages, j % page].float()
        if k_descale is not None:
            keys = keys * k_descale[b][:, None]
        if qv is not None:
            keys = torch.cat([keys, values], -1)
        bias = None if alibi_slopes is None else alibi_slopes[:, None, None] * (j - positions[:, None]).float()
        found = attend(both[own], keys, values, scale, sees(positions, j, window_left, right), softcap, sinks, bias)
        if v_descale is not None:
            found = found * v_descale[b].repeat_interleave(both.shape[1] // values.shape[1])[:, None]
        out[own] = found.to(out.dtype)
    return out.reshape(*shape[:-1], v_cache.shape[3])
