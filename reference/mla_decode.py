"""mla_decode: one query token per request over a paged cache of latents. No mask, no cap, no sink; the scale is the caller's."""

import torch
from torch import Tensor

from reference import checks
from reference.attention_core import attention_core, check_core

PAGE_SIZES = (16, 32, 64, 128)
MOST_SPLITS = 128
SPLIT_KEYS = 512  # keys of an automatic split, at least


def mla_decode(
    q_nope: Tensor,
    q_pe: Tensor,
    kv_cache: Tensor,
    seq_lens: Tensor,
    page_table: Tensor,
    workspace: Tensor,
    sm_scale: float,
    num_kv_splits: int = -1,
    accurate: bool = False,
) -> Tensor:
    """Return [B, H, Dl]: softmax over the first seq_lens[b] keys of (q_nope . c[:Dl] + q_pe . c[Dl:]) * sm_scale, times c[:Dl].

    q_nope [B, H, Dl], q_pe [B, H, Dr]; kv_cache [pages, page, Dl + Dr]; key j of b: c = kv_cache[page_table[b, j // page],
    j % page]; seq_lens [B], page_table [B, M]; workspace [bytes] uint8, scratch that is not needed here. A request without keys
    gives 0. `accurate` asks kernels to round less; nothing here is rounded before the end.
    Raises TypeError (dtypes), ValueError (shapes, sizes, scalars), IndexError (pages).
    """
    for name, tensor in {"q_nope": q_nope, "q_pe": q_pe, "kv_cache": kv_cache}.items():
        checks.is_tensor(name, tensor, 3)
        checks.dense_last_dim(name, tensor)
    checks.same_dtype({"q_nope": q_nope, "q_pe": q_pe, "kv_cache": kv_cache})
    B, H, Dl = q_nope.shape
    Dr = q_pe.shape[2]
    pages, page, _ = kv_cache.shape
    checks.has_shape("q_pe", q_pe, [B, H, Dr])
    checks.has_shape("kv_cache", kv_cache, [pages, page, Dl + Dr])
    if page not in PAGE_SIZES:
        raise ValueError(f"kv_cache has pages of {page} keys, expected one of {PAGE_SIZES}")
    check_core(H, 1, Dl + Dr, Dl, q_nope.dtype, sm_scale)
    checks.is_index("seq_lens", seq_lens, [B])
    checks.is_index("page_table", page_table)
    checks.is_tensor("page_table", page_table, 2)
    M = page_table.shape[1]
    checks.has_shape("page_table", page_table, [B, M])
    lengths = seq_lens.tolist()
    keys = []
    for b, L in enumerate(lengths):
        used = (L + page - 1) // page
        if L < 0:
            raise ValueError(f"seq_lens[{b}] = {L} is negative")
        if used > M:
            raise IndexError(f"seq_lens[{b}] = {L} needs {used} pages of {page} keys, page_table has {M} columns")
        seen = torch.arange(M)[None] < used
        checks.in_range("page_table", page_table, pages, seen & (torch.arange(B)[:, None] == b))
        keys.append((page_table[b, :used].long(), L))
    checks.is_integer("num_kv_splits", num_kv_splits)
    checks.is_bool("accurate", accurate)
    needed = mla_decode_workspace_size(max(lengths, default=0), B, H, page, Dl, int(num_kv_splits))
    checks.is_tensor("workspace", workspace, 1)
    checks.has_dtype("workspace", workspace, (torch.uint8,))
    if not workspace.is_contiguous():
        raise ValueError(f"workspace must be contiguous, got strides {list(workspace.stride())}")
    if workspace.numel() < needed:
        raise ValueError(f"workspace has {workspace.numel()} bytes, {needed} are needed for seq_lens up to {max(lengths)}")
    read = {"q_nope": q_nope, "q_pe": q_pe, "kv_cache": kv_cache, "seq_lens": seq_lens, "page_table": page_table}
    checks.disjoint({"workspace": workspace}, read)

    out = torch.empty(B, H, Dl, dtype=q_nope.dtype)
    q = torch.cat([q_nope, q_pe], dim=-1)
    for b, (used_pages, L) in enumerate(keys):
        latents = kv_cache[used_pages].reshape(-1, 1, Dl + Dr)[:L]
        out[b] = attention_core(q[b : b + 1], latents, latents[..., :Dl], sm_scale=sm_scale)[0]
    return out


def mla_auto_splits(max_seq_len: int, num_batches: int, num_heads: int, page_size: int) -> int:
    """How many splits num_kv_splits = -1 means: one for each 512 keys, as long as the whole batch has at most 128."""
    _check_extents(max_seq_len, num_batches, num_heads, page_size)
    share = 1
    while 2 * share * num_batches <= MOST_SPLITS and share < MOST_SPLITS:
        share *= 2
    return max(1, min(share, (max_seq_len + SPLIT_KEYS - 1) // SPLIT_KEYS))


def mla_decode_workspace_size(
    max_seq_len: int, num_batches: int, num_heads: int, page_size: int, latent_dim: int = 512, num_kv_splits: int = -1
) -> int:
    """Bytes that serve every call of at most these extents: room for a float32 row, its maximum and its sum for each split."""
    _check_extents(max_seq_len, num_batches, num_heads, page_size, latent_dim)
    checks.is_count("num_kv_splits", num_kv_splits, -1)
    if num_kv_splits == 0:
        raise ValueError(f"num_kv_splits must be -1 or at least 1, got {num_kv_splits}")
    if 0 in (max_seq_len, num_batches, num_heads, latent_dim) or page_size < min(PAGE_SIZES):
        return 0
    size = 0
    for batches in range(1, num_batches + 1):  # a smaller batch may have more splits; longer ones never have fewer
        splits = num_kv_splits
        if splits == -1:
            splits = mla_auto_splits(max_seq_len, batches, num_heads, page_size)
        partials = batches * num_heads * splits if splits > 1 else 0
        size = max(size, _aligned(partials * latent_dim * 4) + 2 * _aligned(partials * 4))
    return size


def _aligned(size: int) -> int:
    return (size + 255) // 256 * 256


def _check_extents(*extents: int) -> None:
    names = ("max_seq_len", "num_batches", "num_heads", "page_size", "latent_dim")
    for name, extent in zip(names, extents):
        checks.is_count(name, extent)
