"""rotary_embedding: pairs of elements of each head, rotated in place by angles that depend on the token's position."""

from collections.abc import Sequence

import torch
from torch import Tensor

from reference import checks


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
    mrope_section: Sequence[int] | None = None,
    mrope_interleaved: bool = False,
) -> None:
    """Rotate the first R elements of each head: `x' = x c - y s`, `y' = y c + x s` in float32, each rounded once.

    query [T, H, D], key [T, Hkv, D] or None; cos_sin_cache [P, R] in their dtype or float32: R/2 cosines, then R/2 sines;
    positions [T], its rows, or with mrope_section [3, T]: pair j takes the row of its axis. Pair j is (j, R/2 + j), or
    (2 j, 2 j + 1) without is_neox. (Of float64 tensors in float64: that is the truth.)
    Raises TypeError (dtypes, types), ValueError (shapes, strides, sections, overlap) and IndexError (positions).
    """
    checks.is_tensor("query", query, 3)
    checks.dense_last_dim("query", query)
    T, _, D = query.shape
    if key is not None:
        checks.is_tensor("key", key, 3)
        checks.has_shape("key", key, [T, key.shape[1], D])
        checks.dense_last_dim("key", key)
    checks.same_dtype({"query": query, "key": key})
    checks.is_tensor("cos_sin_cache", cos_sin_cache, 2)
    checks.has_dtype("cos_sin_cache", cos_sin_cache, (query.dtype, torch.float32))
    checks.dense_last_dim("cos_sin_cache", cos_sin_cache)
    P, R = cos_sin_cache.shape
    if R < 2 or R % 2 or R > D:
        raise ValueError(f"cos_sin_cache must have an even number of columns from 2 to {D}, the width of query, got {R}")
    checks.is_bool("is_neox", is_neox)
    checks.is_bool("mrope_interleaved", mrope_interleaved)
    axes = _axes(mrope_section, R // 2, mrope_interleaved)
    checks.is_index("positions", positions, [T] if axes is None else [3, T])
    checks.in_range("positions", positions, P)
    checks.disjoint({"query": query, "key": key}, {"cos_sin_cache": cos_sin_cache, "positions": positions})

    rows = cos_sin_cache[positions.long()].to(torch.promote_types(query.dtype, torch.float32))  # [T, R] or [3, T, R]
    c, s = rows.chunk(2, dim=-1)
    if axes is not None:
        pairs = torch.arange(R // 2)
        c, s = c[axes, :, pairs].T, s[axes, :, pairs].T
    for heads in (query, key):
        if heads is None:
            continue
        x, y = (heads[..., : R // 2], heads[..., R // 2 : R]) if is_neox else (heads[..., 0:R:2], heads[..., 1:R:2])
        old_x, old_y = x.to(c.dtype, copy=True), y.to(c.dtype, copy=True)
        x.copy_(old_x * c[:, None] - old_y * s[:, None])
        y.copy_(old_y * c[:, None] + old_x * s[:, None])


def _axes(section: Sequence[int] | None, pairs: int, interleaved: bool) -> Tensor | None:
    """[R/2]: the axis of each pair. Of a section (a, b, e) in blocks, or taking turns while 3 b and 3 e last; else axis 0."""
    if section is None:
        return None
    if not isinstance(section, (list, tuple)) or not all(isinstance(n, int) for n in section):
        raise TypeError(f"mrope_section must be a list of ints, got {section!r}")
    if len(section) != 3 or min(section) < 0 or sum(section) != pairs:
        raise ValueError(f"mrope_section must be three numbers of 0 or more with the sum {pairs}, got {list(section)}")
    a, b, e = section
    j = torch.arange(pairs)
    if interleaved:
        return torch.where((j % 3 == 1) & (j < 3 * b), 1, torch.where((j % 3 == 2) & (j < 3 * e), 2, 0))
    return torch.where(j < a, 0, torch.where(j < a + b, 1, 2))
