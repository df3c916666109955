"""Attention of one query row at a time in float64, from the definition: no function of the project is called here.

A row is its queries [H, D], the keys [n, Hkv, D] and values [n, Hkv, Dv] that it sees, and where its output stands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ROUNDING = 2.0**-52  # twice the unit roundoff of float64
ROWS = 16  # of a request that are looked at: its ends, and others evenly between them


@dataclass(frozen=True)
class QueryRow:
    """One query row, and all that it sees."""

    at: int
    q: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None = None
    """[H, n]: what comes to the capped scores."""


def attend(row: QueryRow, sm_scale: float, cap: float, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output [H, Dv], and how far another float64 evaluation may be from it.

    Each of the two evaluations sums D products a score and n + 1 terms a softmax; an error e of a score moves a weighted mean of
    the values by no more than 2 e times the largest of them, and so much do n + 16 further roundings.
    """
    heads, n = row.q.shape[0], len(row.keys)
    if not heads or not n:
        return (torch.zeros(heads, row.values.shape[2], dtype=torch.float64),) * 2
    keys, values = _of_heads(row)
    products = keys * row.q[:, None]  # [H, n, D]
    z = products.sum(-1) * sm_scale
    wrong = products.abs().sum(-1) * sm_scale * (products.shape[-1] + 4) * ROUNDING
    if cap > 0:
        z = torch.tanh(z / cap) * cap
        wrong = wrong + 4 * cap * ROUNDING
    if row.bias is not None:
        wrong = wrong + 4 * ROUNDING * (z.abs() + row.bias.abs())
        z = z + row.bias
    everything = z if sinks is None else torch.cat([z, sinks[:, None]], dim=-1)
    weights = torch.exp(z - torch.logsumexp(everything, -1, keepdim=True))
    out = (weights[:, :, None] * values).sum(1)
    sizes = torch.where(everything > -torch.inf, everything.abs(), 0.0)
    e = wrong.amax(-1, keepdim=True) + 4 * ROUNDING * sizes.amax(-1, keepdim=True)
    largest = values.abs().amax(1)
    return out, torch.where(largest > 0, (4 * e + (n + 16) * ROUNDING) * largest, 0.0)  # e may be infinite


def _of_heads(row: QueryRow) -> tuple[Tensor, Tensor]:
    """Keys and values [H, n, ...] of each query head: h of them sees kv head h // group."""
    group = row.q.shape[0] // row.keys.shape[1]
    keys, values = (side.repeat_interleave(group, dim=1).transpose(0, 1) for side in (row.keys, row.values))
    return keys, values


def by_sdpa(row: QueryRow, sm_scale: float) -> Tensor:
    """The same by torch's own attention, for a row with neither cap nor sinks that sees a key."""
    keys, values = _of_heads(row)
    bias = None if row.bias is None else row.bias[:, None]
    return scaled_dot_product_attention(row.q[:, None], keys, values, attn_mask=bias, scale=sm_scale)[:, 0]


def shown(count: int) -> list[int]:
    """Which of a request's rows are looked at."""
    return sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)}) if count > ROWS else list(range(count))


def seen_by(position: int, keys: int, left: int, right: int) -> list[int]:
    """Keys within a window around a position; a side of -1 has no end."""
    return [j for j in range(keys) if (left < 0 or j >= position - left) and (right < 0 or j <= position + right)]


def paged_rows(x: Mapping[str, Any]) -> Iterator[QueryRow]:
    """Of paged_attention: query i of sq stands at position i + sk - sq."""
    offsets, page = x["cu_seqlens_q"].tolist(), x["k_cache"].shape[1]
    for b, sk in enumerate(x["cache_seqlens"].tolist()):
        sq, pages = offsets[b + 1] - offsets[b], x["page_table"][b].tolist()
        for i in shown(sq):
            seen = seen_by(i + sk - sq, sk, x["window_left"], 0 if x["causal"] else x["window_right"])
            q = x["q"][offsets[b] + i]
            slots = [pages[j // page] for j in seen], [j % page for j in seen]
            keys, values = (cache[slots] if seen else cache[0, :0] for cache in (x["k_cache"], x["v_cache"]))
            if x["qv"] is not None:
                q, keys = torch.cat([q, x["qv"][offsets[b] + i]], dim=-1), torch.cat([keys, values], dim=-1)
            k_scale, v_scale = (1.0 if x[name] is None else x[name][b][:, None] for name in ("k_descale", "v_descale"))
            slopes, away = x["alibi_slopes"], [j - (i + sk - sq) for j in seen]
            bias = None if slopes is None else slopes[:, None] * torch.tensor(away, dtype=torch.float64)
            yield QueryRow(offsets[b] + i, q, keys * k_scale, values * v_scale, bias)


def extend_rows(x: Mapping[str, Any]) -> Iterator[QueryRow]:
    """Of extend_attention: the last E of a request's L tokens are new, and stand in k and v."""
    names = ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc")
    for b, (pool, L, E, start) in enumerate(zip(*(x[name].tolist() for name in names))):
        slots = x["req_to_token"][pool].tolist()
        encoder = 0 if x["encoder_lens"] is None else int(x["encoder_lens"][b])
        for i in shown(E):
            old, new = slots[:encoder], []
            if not x["is_cross_attn"]:
                seen = seen_by(L - E + i, L, x["sliding_window"] - 1 if x["sliding_window"] > 0 else -1, 0)
                old = [slots[encoder + j] for j in seen if j < L - E]
                new = [start + j - (L - E) for j in seen if j >= L - E]
            keys, values = (_of_both(x[f"{side}_cache"], old, x[side], new) for side in ("k", "v"))
            yield QueryRow(start + i, x["q"][start + i], keys, values)


def _of_both(cache: Tensor, old: list[int], fresh: Tensor | None, new: list[int]) -> Tensor:
    """Rows of the cache and behind them new ones. What nothing is read from may be None or of another size."""
    if fresh is None or not new:
        return cache[old]
    return torch.cat([cache[old], fresh[new]]) if old else fresh[new]


def live_requests(x: Mapping[str, Any]) -> Tensor:
    """Which requests [B] of decode_attention are no pads."""
    if x["pad_slot"] is None:
        return torch.ones(len(x["seq_lens"]), dtype=torch.bool)
    return torch.as_tensor(x["loc"] != x["pad_slot"])


def decode_rows(x: Mapping[str, Any]) -> Iterator[QueryRow]:
    """Of decode_attention, whose caches hold the new keys already: the query is a request's last token. Pads are no rows."""
    live = live_requests(x).tolist()
    for b, (pool, L) in enumerate(zip(x["req_pool_indices"].tolist(), x["seq_lens"].tolist())):
        if not live[b]:
            continue
        slots = x["req_to_token"][pool].tolist()
        encoder = 0 if x["encoder_lens"] is None else int(x["encoder_lens"][b])
        if x["is_cross_attn"]:
            seen = slots[:encoder]
        else:
            window = x["sliding_window"]
            seen = [slots[encoder + j] for j in seen_by(L - 1, L, window - 1 if window > 0 else -1, 0)]
        yield QueryRow(b, x["q"][b], x["k_cache"][seen], x["v_cache"][seen])


def mla_rows(x: Mapping[str, Any]) -> Iterator[QueryRow]:
    """Of mla_decode: one latent row a key, whose first columns are the value."""
    page, width = x["kv_cache"].shape[1], x["q_nope"].shape[2]
    for b, L in enumerate(x["seq_lens"].tolist()):
        pages = x["page_table"][b].tolist()
        slots = [pages[j // page] for j in range(L)], [j % page for j in range(L)]
        keys = x["kv_cache"][slots][:, None] if L else x["kv_cache"][:0, :1]
        yield QueryRow(b, torch.cat([x["q_nope"][b], x["q_pe"][b]], dim=-1), keys, keys[..., :width])
