"""paged_attention: attention of ragged queries over a paged, read-only KV cache.

The new tokens' keys are in the cache already; nothing is written but the result.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from reference import checks
from reference.attention_core import attention_core, check_core

SCORES_AT_ONCE = 1 << 22  # scores held at a time: long requests are worked through in blocks of rows
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor | int,
    cu_seqlens_q: Tensor | None, qv: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    sinks: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False, window_left: int = -1,
    window_right: int = -1, softcap: float = 0.0, num_splits: int = 0, alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Return [Tq, H, Dv]: for each request b the rows cu_seqlens_q[b]..cu_seqlens_q[b+1] over sk = cache_seqlens[b] keys.

    q [Tq, H, D]; k_cache [pages, page, Hkv, D], v_cache [pages, page, Hkv, Dv] in q's dtype or both in one float8 dtype; key j
    of request b lies in page page_table[b, j // page]. qv [Tq, H, Dv] adds qv.v to the score; k_descale, v_descale [B, Hkv]
    multiply K and V. Query i of sq has position i + sk - sq; window_left and window_right bound how far it sees (-1: no
    bound), causal forces window_right to 0. alibi_slopes [H] times (j - position) comes to the capped score. Rows
    that belong to no request, or see no key, are 0. num_splits is a hint.
    Also takes an int for cache_seqlens, and q [B, S, H, D] with cu_seqlens_q None or the multiples of S.
    """
    checks.is_tensor("q", q)
    checks.is_bool("causal", causal)
    if q.dim() == 4:
        B, S = q.shape[:2]
        offsets = torch.arange(B + 1) * S
        if cu_seqlens_q is not None:
            checks.is_index("cu_seqlens_q", cu_seqlens_q, [B + 1])
            if cu_seqlens_q.tolist() != offsets.tolist():
                raise ValueError(f"cu_seqlens_q must be None or the multiples of {S} for q of shape {list(q.shape)}")
        if qv is not None:
            checks.is_tensor("qv", qv, 4)
            qv = qv.flatten(0, 1)
        result = paged_attention(q.flatten(0, 1), k_cache, v_cache, page_table, cache_seqlens, offsets, qv, k_descale,
                                 v_descale, sinks, softmax_scale, causal, window_left, window_right, softcap, num_splits,
                                 alibi_slopes)
        return result.unflatten(0, (B, S))
    checks.is_index("page_table", page_table)
    checks.is_tensor("page_table", page_table, 2)
    if isinstance(cache_seqlens, int):
        checks.is_integer("cache_seqlens", cache_seqlens)
        cache_seqlens = torch.full((page_table.shape[0],), cache_seqlens)
    checks.is_tensor("v_cache", v_cache, 4)
    if softmax_scale is None and q.dim() == 3:
        softmax_scale = max(1, q.shape[2] + (v_cache.shape[-1] if qv is not None else 0)) ** -0.5
    spans = _check(q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q, qv, k_descale, v_descale, sinks,
                   softmax_scale, window_left, window_right, softcap, num_splits)
    if alibi_slopes is not None:
        _check_slopes(alibi_slopes, q.shape[1], q.dtype)
    assert softmax_scale is not None
    # Larger windows bound nothing, and could wrap.
    left, right = min(int(window_left), 2**62), 0 if causal else min(int(window_right), 2**62)

    T, H, _ = q.shape
    page = k_cache.shape[1]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = q.new_zeros(T, H, v_cache.shape[3])
    for b, (start, sq, sk, low, high) in enumerate(spans):
        if low >= high:
            continue
        j = torch.arange(low, high)
        pages = page_table[b, j // page].long()
        keys, values = k_cache[pages, j % page].to(wide), v_cache[pages, j % page].to(wide)
        queries = q[start : start + sq]
        if qv is not None:
            queries, keys = torch.cat([queries, qv[start : start + sq]], dim=-1), torch.cat([keys, values], dim=-1)
        if k_descale is not None:
            keys = keys * k_descale[b].to(wide)[:, None]
        if v_descale is not None:
            values = values * v_descale[b].to(wide)[:, None]
        step = max(1, SCORES_AT_ONCE // max(1, H * len(j)))
        for i in range(0, sq, step):
            p = torch.arange(i, min(i + step, sq))[:, None] + sk - sq
            visible = (j >= p - left) | (left < 0)
            visible &= (j <= p + right) | (right < 0)
            out[start + i : start + i + len(p)] = attention_core(
                queries[i : i + step], keys, values, visible, sm_scale=softmax_scale, logit_cap=softcap, sinks=sinks,
                slopes=alibi_slopes, distance=j - p,
            )
    return out


def _check_slopes(slopes: Tensor, heads: int, dtype: torch.dtype) -> None:
    checks.is_tensor("alibi_slopes", slopes, 1)
    checks.has_shape("alibi_slopes", slopes, [heads])
    checks.has_dtype("alibi_slopes", slopes, (torch.float32, torch.float64) if dtype == torch.float64 else (torch.float32,))
    bad = (~slopes.isfinite()).nonzero()
    if len(bad):
        raise ValueError(f"alibi_slopes[{int(bad[0])}] = {float(slopes[int(bad[0])])} must be finite")


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, cu_seqlens_q: Tensor | None,
    qv: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None, sinks: Tensor | None,
    softmax_scale: float | None, window_left: int, window_right: int, softcap: float, num_splits: int,
) -> list[tuple[int, int, int, int, int]]:
    """Every check of the contract; returns (first row, sq, sk, first key, last key + 1) for each request, keys that some
    row of it sees."""
    for name, tensor, rank in (("q", q, 3), ("k_cache", k_cache, 4), ("v_cache", v_cache, 4)):
        checks.is_tensor(name, tensor, rank)
        checks.dense_last_dim(name, tensor)
    checks.has_dtype("q", q, checks.FLOAT_DTYPES)
    checks.has_dtype("k_cache", k_cache, (q.dtype, *FP8_DTYPES))
    checks.has_dtype("v_cache", v_cache, (k_cache.dtype,))
    T, H, D = q.shape
    pages, page, Hkv, _ = k_cache.shape
    Dv = v_cache.shape[3]
    checks.has_shape("k_cache", k_cache, [pages, page, Hkv, D])
    checks.has_shape("v_cache", v_cache, [pages, page, Hkv, Dv])
    if page < 1:
        raise ValueError(f"k_cache has pages of {page} slots")
    if qv is not None:
        checks.is_tensor("qv", qv, 3)
        checks.dense_last_dim("qv", qv)
        checks.has_shape("qv", qv, [T, H, Dv])
        checks.has_dtype("qv", qv, (q.dtype,))
        if k_cache.dtype in FP8_DTYPES or k_descale is not None or v_descale is not None:
            raise ValueError("qv cannot be combined with a float8 cache or with descales")
    B = page_table.shape[0]
    for name, descale in {"k_descale": k_descale, "v_descale": v_descale}.items():
        if descale is not None:
            checks.is_tensor(name, descale, 2)
            checks.has_shape(name, descale, [B, Hkv])
            checks.has_dtype(name, descale, (torch.float32, torch.float64) if q.dtype == torch.float64 else (torch.float32,))
    checks.is_index("cache_seqlens", cache_seqlens, [B])
    checks.is_index("cu_seqlens_q", cu_seqlens_q, [B + 1])
    assert cu_seqlens_q is not None and softmax_scale is not None
    check_core(H, Hkv, D, Dv, q.dtype, softmax_scale, softcap, sinks, names=("softmax_scale", "softcap"))
    for name, value, least in (("window_left", window_left, -1), ("window_right", window_right, -1),
                               ("num_splits", num_splits, 0)):
        checks.is_integer(name, value)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    offsets = cu_seqlens_q.tolist()
    if offsets[0] < 0 or offsets[-1] > T or any(a > b for a, b in pairwise(offsets)):
        raise ValueError(f"cu_seqlens_q must rise from 0 or more to at most {T}, got {offsets}")
    if (cache_seqlens < 0).any():
        raise ValueError(f"cache_seqlens holds the negative length {int(cache_seqlens.min())}")
    used = (cache_seqlens > 0) & (cu_seqlens_q.diff() > 0)
    if k_descale is not None and not ((k_descale > 0) & k_descale.isfinite())[used].all():
        raise ValueError(f"k_descale must be finite and > 0 for requests with rows and keys, got {k_descale.tolist()}")
    return _spans(page_table, cache_seqlens.tolist(), offsets, pages, page, window_left)


def _spans(
    page_table: Tensor, lens: list[int], offsets: list[int], pages: int, page: int, window_left: int
) -> list[tuple[int, int, int, int, int]]:
    """What `_check` returns; the pages of keys that some row sees must exist."""
    M = page_table.shape[1]
    spans = []
    for b, sk in enumerate(lens):
        if math.ceil(sk / page) > M:
            raise IndexError(f"cache_seqlens[{b}] = {sk} needs more than the {M} pages of {page} in page_table")
        sq = offsets[b + 1] - offsets[b]
        low = max(0, sk - sq - window_left) if window_left >= 0 else 0  # what the first row sees at the left
        high = sk if sq else low  # the last row sees the last key
        first = low // page
        used = page_table[b, first : math.ceil(high / page)] if low < high else page_table[b, :0]
        bad = ((used < 0) | (used >= pages)).nonzero()
        if len(bad):
            column = int(bad[0])
            raise IndexError(f"page_table[{b}, {first + column}] = {int(used[column])} is outside [0, {pages})")
        spans.append((offsets[b], sq, sk, low, high))
    return spans
