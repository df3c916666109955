"""local_attention_batches: counts the virtual requests, allocates for them, and lets one operator fill everything."""

import torch
from torch import Tensor

from optimized._checks import check_count
from optimized.operators import operator

_MOST = 2**62  # larger chunks and pages act alike: no length reaches them


def local_attention_batches(
    attn_chunk_size: int, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return seqlens_q_local [V], cu_seqlens_q_local [V + 1], seqlens_k_local [V], block_table_local [V, width], all int32.

    query_start_loc [B + 1], seq_lens [B] and block_table [B, M] (page ids) are int32 or int64. A request with q new and k total
    tokens gives one virtual request for each chunk that holds a new token; width = min(attn_chunk_size // page_size, M).
    Raises TypeError (types), ValueError (scalars, lengths), IndexError (lengths beyond the table, used page ids).
    """
    check_count("attn_chunk_size", attn_chunk_size, 1)
    check_count("page_size", page_size, 1)
    if attn_chunk_size % page_size:
        raise ValueError(f"attn_chunk_size {attn_chunk_size} must be a multiple of page_size {page_size}")
    inputs = min(attn_chunk_size, _MOST), query_start_loc, seq_lens, block_table, min(page_size, _MOST)
    rows = operator("local_attention_batches_plan")(*inputs).tolist()[0]
    width = min(attn_chunk_size // page_size, block_table.shape[1])
    q_local, k_local = (torch.empty(rows, dtype=torch.int32) for _ in range(2))
    cu_q, table = torch.empty(rows + 1, dtype=torch.int32), torch.empty(rows, width, dtype=torch.int32)
    operator("local_attention_batches_fill")(*inputs, q_local, cu_q, k_local, table)
    return q_local, cu_q, k_local, table
