"""local_attention_batches: counts the virtual requests, allocates for them, and lets one operator fill everything."""

import torch
from torch import Tensor

from optimized.operators import operator
from serving.checks import check_chunk

_MOST = 2**62  # larger chunks, of whole pages, and pages act alike: no length reaches them


def local_attention_batches(
    attn_chunk_size: int, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lengths of queries [V], offsets [V + 1], lengths of keys [V] and page ids [V, width] of V virtual requests, all int32.

    Arguments and errors are those of reference.local_attention_batches.
    """
    check_chunk(attn_chunk_size, page_size)
    page = min(page_size, _MOST)
    inputs = min(attn_chunk_size, _MOST // page * page), query_start_loc, seq_lens, block_table, page
    rows = operator("local_attention_batches_plan")(*inputs).tolist()[0]
    width = min(attn_chunk_size // page_size, block_table.shape[1])
    q_local, k_local = (torch.empty(rows, dtype=torch.int32) for _ in range(2))
    cu_q, table = torch.empty(rows + 1, dtype=torch.int32), torch.empty(rows, width, dtype=torch.int32)
    operator("local_attention_batches_fill")(*inputs, q_local, cu_q, k_local, table)
    return q_local, cu_q, k_local, table
