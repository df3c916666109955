"""paged_attention: the operator, for queries of one length and for one length of all caches as well."""

import torch
from torch import Tensor

from optimized.checks import INDEX_DTYPES, check_tensor
from optimized.operators import operator


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor | int,
    cu_seqlens_q: Tensor | None, qv: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    sinks: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False, window_left: int = -1,
    window_right: int = -1, softcap: float = 0.0, num_splits: int = 0, alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Return [Tq, H, Dv]: for each request b the rows cu_seqlens_q[b]..cu_seqlens_q[b+1] over cache_seqlens[b] keys.

    q [Tq, H, D]; k_cache [pages, page, Hkv, D], v_cache [pages, page, Hkv, Dv] in q's dtype or float8; page_table [B, M].
    Or q [B, S, H, D] with cu_seqlens_q None or the multiples of S, which gives [B, S, H, Dv]; cache_seqlens may be an int.
    alibi_slopes [H] float32 times (key - position of the row) comes to each score, behind the cap.
    Raises TypeError (types), ValueError (shapes, scalars, lengths), IndexError (lengths beyond the table, used page ids).
    """
    if isinstance(cache_seqlens, int) and isinstance(page_table, Tensor):
        if not 0 <= cache_seqlens < 2**63:
            raise ValueError(f"cache_seqlens = {cache_seqlens} is no length")
        cache_seqlens = torch.full(page_table.shape[:1], cache_seqlens)
    rest = (k_descale, v_descale, sinks, softmax_scale, causal, window_left, window_right, softcap, num_splits,
            alibi_slopes)
    call = operator("paged_attention")
    if not isinstance(q, Tensor) or q.dim() != 4:
        return call(q, k_cache, v_cache, page_table, cache_seqlens, cu_seqlens_q, qv, *rest)
    B, S = q.shape[:2]
    offsets = torch.arange(B + 1) * S
    if cu_seqlens_q is not None:
        check_tensor("cu_seqlens_q", cu_seqlens_q, 1, INDEX_DTYPES, [B + 1])
        if cu_seqlens_q.tolist() != offsets.tolist():
            raise ValueError(f"cu_seqlens_q must be None or the multiples of {S} for q of shape {list(q.shape)}")
    if qv is not None:
        if not isinstance(qv, Tensor):
            raise TypeError(f"qv must be a tensor, got {type(qv).__name__}")
        if qv.dim() != 4:
            raise ValueError(f"qv must have 4 dimensions as q has, got shape {list(qv.shape)}")
        qv = qv.flatten(0, 1)
    result = call(q.flatten(0, 1), k_cache, v_cache, page_table, cache_seqlens, offsets, qv, *rest)
    return result.unflatten(0, (B, S))
