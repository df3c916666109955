"""mla_decode with what its callers need to size the workspace."""

import torch

from optimized.library import load, raise_as_marked
from optimized.operators import operator

mla_decode = operator("mla_decode")


def mla_auto_splits(max_seq_len: int, num_batches: int, num_heads: int, page_size: int) -> int:
    """How many splits num_kv_splits = -1 means, 1 to 128. ValueError for a negative extent."""
    return _ask("_mla_auto_splits", max_seq_len, num_batches, num_heads, page_size)


def mla_decode_workspace_size(
    max_seq_len: int, num_batches: int, num_heads: int, page_size: int, latent_dim: int = 512, num_kv_splits: int = -1
) -> int:
    """Bytes of workspace that serve every call of at most these extents. ValueError for a negative extent or wrong splits."""
    return _ask("_mla_decode_workspace_size", max_seq_len, num_batches, num_heads, page_size, latent_dim, num_kv_splits)


def _ask(name: str, *extents: int) -> int:
    load()
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise TypeError(f"extents must be ints, got {type(extent).__name__}")
    return int(raise_as_marked(getattr(torch.ops.kernelpair, name), *extents))
