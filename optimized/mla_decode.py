"""mla_decode with what its callers need to size the workspace."""

import torch

from optimized.library import load, raise_as_marked
from optimized.operators import operator

mla_decode = operator("mla_decode")


def mla_auto_splits(max_seq_len: int, num_batches: int, num_heads: int, page_size: int) -> int:
    """How many splits num_kv_splits = -1 means, 1 to 128. ValueError for a negative extent."""
    extents = {"max_seq_len": max_seq_len, "num_batches": num_batches, "num_heads": num_heads, "page_size": page_size}
    return _ask("_mla_auto_splits", extents)


def mla_decode_workspace_size(
    max_seq_len: int, num_batches: int, num_heads: int, page_size: int, latent_dim: int = 512, num_kv_splits: int = -1
) -> int:
    """Bytes of workspace that serve every call of at most these extents. ValueError for a negative extent or wrong splits."""
    extents = {"max_seq_len": max_seq_len, "num_batches": num_batches, "num_heads": num_heads, "page_size": page_size}
    return _ask("_mla_decode_workspace_size", extents | {"latent_dim": latent_dim, "num_kv_splits": num_kv_splits})


def _ask(operator_name: str, extents: dict[str, int]) -> int:
    load()
    for name, extent in extents.items():
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise TypeError(f"{name} must be an int, got {type(extent).__name__}")
        if not -(2**63) <= extent < 2**63:
            raise ValueError(f"{name} = {extent} does not fit 64 bits")
    return int(raise_as_marked(getattr(torch.ops.kernelpair, operator_name), *extents.values()))
