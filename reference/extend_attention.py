"""extend_attention: attention of the new tokens of several requests over their cached prefix and themselves.

It never writes a cache, and a request that reads no cache does not look at it.
"""

from itertools import pairwise

import torch
from torch import Tensor

from reference import checks
from reference.attention_core import attention_core, check_core

SCORES_AT_ONCE = 1 << 22  # scores held at a time: long requests are worked through in blocks of rows


def extend_attention(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor,
    encoder_lens: Tensor | None, sinks: Tensor | None, sm_scale: float, logit_cap: float = 0.0, sliding_window: int = 0,
    is_cross_attn: bool = False,
) -> None:
    """Write rows s..s+E-1 of `out` for each request b: L = seq_lens[b] keys, the last E = extend_seq_lens[b] of them new.

    q [T, H, D], out [T, H, Dv]; k [T, Hkv, D], v [T, Hkv, Dv] hold the new keys, k_cache [P, Hkv, D], v_cache [P, Hkv, Dv] the
    cached ones; req_to_token [R, C] gives the slots of request row req_pool_indices[b]; s = extend_start_loc[b]; lengths and
    indices [B]. With encoder_lens [B], decoder slots start behind the encoder's; with is_cross_attn, the encoder's are the keys.
    A query at position p sees key j iff p - W < j <= p, W = sliding_window (<= 0: no window); a cross query sees every key.
    """
    spans = _check(q, k, v, out, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_seq_lens,
                   extend_start_loc, encoder_lens, sinks, sm_scale, logit_cap, sliding_window, is_cross_attn)
    sliding_window = int(sliding_window)  # a bool may stand for it, which torch does not subtract
    for pool, L, E, s, off in spans:
        if E == 0:
            continue
        slots = req_to_token[pool].long()
        if is_cross_attn:
            first, N = 0, off
            keys, values = k_cache[slots[:N]], v_cache[slots[:N]]
        else:
            assert k is not None and v is not None
            Pb, N = L - E, L
            first = max(0, Pb - sliding_window + 1) if sliding_window > 0 else 0  # keys before it are visible to no row
            cached = slots[off + min(first, Pb) : off + Pb]
            fresh = slice(s, s + E)
            keys = torch.cat([k_cache[cached], k[fresh]]) if len(cached) else k[fresh]
            values = torch.cat([v_cache[cached], v[fresh]]) if len(cached) else v[fresh]
        step = max(1, SCORES_AT_ONCE // max(1, q.shape[1] * N))
        for i in range(0, E, step):
            rows = slice(s + i, s + min(i + step, E))
            visible = None
            if not is_cross_attn:
                p = torch.arange(L - E + i, L - E + min(i + step, E))[:, None]
                j = torch.arange(L - len(keys), L)[None, :]
                visible = (j <= p) & (j > p - sliding_window) if sliding_window > 0 else j <= p
            out[rows] = attention_core(
                q[rows], keys, values, visible, sm_scale=sm_scale, logit_cap=logit_cap, sinks=sinks
            )


def _check(
    q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, k_cache: Tensor, v_cache: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, extend_seq_lens: Tensor, extend_start_loc: Tensor,
    encoder_lens: Tensor | None, sinks: Tensor | None, sm_scale: float, logit_cap: float, sliding_window: int,
    is_cross_attn: bool,
) -> list[tuple[int, int, int, int, int]]:
    """Every check of the contract; returns (pool row, L, E, s, encoder length) for each request."""
    checks.is_bool("is_cross_attn", is_cross_attn)
    tensors = {"q": q, "out": out, "k_cache": k_cache, "v_cache": v_cache}
    if not is_cross_attn:
        for name, value in {"k": k, "v": v}.items():
            if value is None:
                raise ValueError(f"{name} is None, but only a cross-attention call works without new keys")
            tensors[name] = value
    elif encoder_lens is None:
        raise ValueError("encoder_lens is None, but cross attention needs the encoder's lengths")
    for name, tensor in {"k": k, "v": v}.items():
        if tensor is not None:  # cross attention reads only which dtype they have
            checks.is_tensor(name, tensor)
    for name, tensor in tensors.items():
        checks.is_tensor(name, tensor, 3)
    for name, tensor in tensors.items():
        checks.dense_last_dim(name, tensor)
    checks.same_dtype({**tensors, "k": k, "v": v})
    lengths = {"req_pool_indices": req_pool_indices, "seq_lens": seq_lens, "extend_seq_lens": extend_seq_lens,
               "extend_start_loc": extend_start_loc}
    if encoder_lens is not None:
        lengths["encoder_lens"] = encoder_lens
    spans = _spans(req_to_token, lengths)
    T, H, D = q.shape
    checks.is_integer("sliding_window", sliding_window)
    used = _columns_read(spans, T, req_to_token.shape[1], sliding_window, is_cross_attn)
    segments = sorted((s, s + E, b) for b, (_, _, E, s, _) in enumerate(spans) if E)
    for (_, end, b), (start, _, other) in pairwise(segments):
        if start < end:
            raise ValueError(f"extend_start_loc: the rows of requests {b} and {other} overlap")

    reads_cache = is_cross_attn or any(end > start for start, end in used)
    checks.has_shape("v_cache", v_cache, [k_cache.shape[0], *v_cache.shape[1:]])
    Hkv, Dv = (k_cache.shape[1], v_cache.shape[2]) if k is None or is_cross_attn else (k.shape[1], out.shape[2])
    if not is_cross_attn:
        checks.has_shape("k", tensors["k"], [T, Hkv, D])
        checks.has_shape("v", tensors["v"], [T, Hkv, Dv])
    checks.has_shape("out", out, [T, H, Dv])
    if reads_cache:
        checks.has_shape("k_cache", k_cache, [k_cache.shape[0], Hkv, D])
        checks.has_shape("v_cache", v_cache, [k_cache.shape[0], Hkv, Dv])
    check_core(H, Hkv, D, Dv, q.dtype, sm_scale, logit_cap, sinks)
    for b, (start, end) in enumerate(used):
        _check_slots(b, start, req_to_token[spans[b][0], start:end], k_cache.shape[0])
    read = {**tensors, "k": k, "v": v, **lengths, "req_to_token": req_to_token, "sinks": sinks}
    checks.disjoint({"out": out}, {name: tensor for name, tensor in read.items() if name != "out"})
    return spans


def _spans(req_to_token: Tensor, lengths: dict[str, Tensor]) -> list[tuple[int, int, int, int, int]]:
    """What `_check` returns, from the table and the vectors of one entry a request, which are checked by themselves."""
    pools = lengths["req_pool_indices"]
    B = len(pools) if isinstance(pools, Tensor) and pools.dim() else 0
    for name, tensor in lengths.items():
        checks.is_index(name, tensor, [B])
    checks.is_index("req_to_token", req_to_token)
    checks.is_tensor("req_to_token", req_to_token, 2)
    for name in ("seq_lens", "extend_seq_lens", "encoder_lens"):
        if name in lengths and (lengths[name] < 0).any():
            raise ValueError(f"{name} holds the negative length {int(lengths[name].min())}")
    checks.in_range("req_pool_indices", pools, req_to_token.shape[0])
    vectors = list(lengths.values())
    if "encoder_lens" not in lengths:
        vectors.append(torch.zeros(B, dtype=torch.int64))
    return list(zip(*(vector.tolist() for vector in vectors)))


def _columns_read(
    spans: list[tuple[int, int, int, int, int]], T: int, C: int, sliding_window: int, is_cross_attn: bool
) -> list[tuple[int, int]]:
    """The columns of its table row that each request reads: those of its prefix that a window shows, or all of its encoder's."""
    used = []
    for b, (_, L, E, s, off) in enumerate(spans):
        if L < E:
            raise ValueError(f"seq_lens[{b}] = {L} is less than extend_seq_lens[{b}] = {E}")
        if s < 0 or s + E > T:
            raise IndexError(f"extend_start_loc[{b}] = {s} with extend_seq_lens[{b}] = {E} is outside [0, {T})")
        if off > C:
            raise IndexError(f"encoder_lens[{b}] = {off} is more than the {C} columns of req_to_token")
        if not is_cross_attn and off + L > C:
            raise IndexError(f"seq_lens[{b}] = {L} (behind {off} encoder slots) passes the {C} columns of req_to_token")
        first = max(0, L - E - sliding_window + 1) if sliding_window > 0 else 0
        used.append((0, 0) if E == 0 else (0, off) if is_cross_attn else (off + min(first, L - E), off + L - E))
    return used


def _check_slots(b: int, first: int, slots: Tensor, count: int) -> None:
    """Slots of request b from column `first` on lie in [0, count)."""
    bad = ((slots < 0) | (slots >= count)).nonzero()
    if len(bad):
        column, held = first + int(bad[0]), int(slots[bad[0]])
        raise IndexError(f"req_to_token: request {b}, column {column} holds {held}, outside [0, {count})")
