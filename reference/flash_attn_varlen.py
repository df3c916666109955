"""flash_attn_varlen: attention of requests whose rows and keys lie one after the other, with any number of keys."""

from itertools import pairwise

import torch
from torch import Tensor

from reference import checks
from reference.attention_core import attention_core, check_core

SCORES_AT_ONCE = 1 << 22  # scores held at a time: long requests are worked through in blocks of rows
ALIGNMENTS = ("bottom_right", "top_left")


def flash_attn_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, causal_requests: Tensor | None = None,
    alignment: str = "bottom_right", window_left: int = -1, window_right: int = -1, softcap: float = 0.0,
) -> Tensor:
    """Return [Tq, H, Dv]: rows cu_seqlens_q[b]..cu_seqlens_q[b+1] over keys cu_seqlens_k[b]..cu_seqlens_k[b+1], for each b.

    q [Tq, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv] of one float dtype; offsets [B + 1]; causal_requests [B] bool in the place
    of `causal`. Row i of lq over lk keys stands at position i (top_left) or i + lk - lq (bottom_right); windows and causality
    count from there as in `paged_attention`. Rows that belong to no request, or see no key, are 0. Raises TypeError (types),
    ValueError (shapes, scalars, offsets).
    """
    if softmax_scale is None and isinstance(q, Tensor) and q.dim() == 3:
        softmax_scale = max(1, q.shape[2]) ** -0.5
    _check(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, softmax_scale, causal, causal_requests, alignment, window_left,
           window_right, softcap)
    assert softmax_scale is not None
    out = q.new_zeros(*q.shape[:2], v.shape[2])
    spans = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()))
    for b, ((start, end), (first, last)) in enumerate(spans):
        lq, lk = end - start, last - first
        is_causal = causal if causal_requests is None else bool(causal_requests[b])
        # Larger windows bound nothing, and could wrap.
        left, right = int(min(window_left, lq + lk)), 0 if is_causal else int(min(window_right, lq + lk))
        j = torch.arange(lk)
        step = max(1, SCORES_AT_ONCE // max(1, q.shape[1] * lk))
        for i in range(0, lq, step):
            p = torch.arange(i, min(i + step, lq))[:, None] + (lk - lq if alignment == "bottom_right" else 0)
            visible = (j >= p - left) | (left < 0)
            visible &= (j <= p + right) | (right < 0)
            rows = slice(start + i, start + i + len(p))
            out[rows] = attention_core(
                q[rows], k[first:last], v[first:last], visible, sm_scale=softmax_scale, logit_cap=softcap, sinks=sinks
            )
    return out


def _check(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None,
    softmax_scale: float | None, causal: bool, causal_requests: Tensor | None, alignment: str, window_left: int,
    window_right: int, softcap: float,
) -> None:
    """Every check of the contract."""
    tensors = {"q": q, "k": k, "v": v}
    for name, tensor in tensors.items():
        checks.is_tensor(name, tensor, 3)
        checks.dense_last_dim(name, tensor)
    checks.same_dtype(tensors)
    (Tq, H, D), (Tk, Hkv, _), Dv = q.shape, k.shape, v.shape[2]
    checks.has_shape("k", k, [Tk, Hkv, D])
    checks.has_shape("v", v, [Tk, Hkv, Dv])
    for name, offsets, tokens in (("cu_seqlens_q", cu_seqlens_q, Tq), ("cu_seqlens_k", cu_seqlens_k, Tk)):
        checks.is_tensor(name, offsets, 1)
        checks.is_index(name, offsets)
        checks.offsets(name, offsets, tokens)
    B = len(cu_seqlens_q) - 1
    checks.has_shape("cu_seqlens_k", cu_seqlens_k, [B + 1])
    checks.is_bool("causal", causal)
    if causal_requests is not None:
        checks.is_tensor("causal_requests", causal_requests, 1)
        checks.has_dtype("causal_requests", causal_requests, [torch.bool])
        checks.has_shape("causal_requests", causal_requests, [B])
        if causal:
            raise ValueError("causal_requests says of each request what causal = True says of all: give one")
    checks.one_of("alignment", alignment, ALIGNMENTS)
    assert softmax_scale is not None
    check_core(H, Hkv, D, Dv, q.dtype, softmax_scale, softcap, sinks, names=("softmax_scale", "softcap"))
    for name, value in (("window_left", window_left), ("window_right", window_right)):
        checks.is_integer(name, value)
        if value < -1:
            raise ValueError(f"{name} must be at least -1, got {value}")
