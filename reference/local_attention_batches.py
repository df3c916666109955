"""local_attention_batches: cut each request at multiples of a chunk, so that causal attention over the pieces is local.

It only rearranges lengths and page ids; it computes no attention and never looks into the cache.
"""

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from reference import checks
from serving.checks import check_chunk

INT32_END = 2**31


def local_attention_batches(
    attn_chunk_size: int, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return seqlens_q_local [V], cu_seqlens_q_local [V + 1], seqlens_k_local [V], block_table_local [V, width], all int32.

    query_start_loc [B + 1], seq_lens [B] and block_table [B, M] (page ids) are int32 or int64. A request with q new and k total
    tokens gives one virtual request for each chunk that holds a new token; width = min(attn_chunk_size // page_size, M).
    Raises TypeError (types), ValueError (scalars, lengths), IndexError (lengths beyond the table, used page ids).
    """
    check_chunk(attn_chunk_size, page_size)
    checks.is_tensor("block_table", block_table, 2)
    checks.is_index("block_table", block_table)
    B, M = block_table.shape
    checks.is_index("seq_lens", seq_lens, [B])
    checks.is_index("query_start_loc", query_start_loc, [B + 1])
    starts, k_lens = query_start_loc.tolist(), seq_lens.tolist()
    q_lens = [after - before for before, after in pairwise(starts)]
    if starts[0] < 0:
        raise ValueError(f"query_start_loc[0] = {starts[0]} is negative")
    for b, (q, k) in enumerate(zip(q_lens, k_lens)):
        if q < 0 or k < 0 or (q > k > 0):
            raise ValueError(f"query_start_loc, seq_lens: request {b} has {q} new tokens of {k}")
        if k > M * page_size:
            raise IndexError(f"seq_lens[{b}] = {k} is beyond {M} pages of {page_size} in block_table")
        first = (k - q) // attn_chunk_size * attn_chunk_size  # of the keys of the first virtual request, the longest
        if q and k and min(k - first, attn_chunk_size) >= INT32_END:
            raise ValueError(f"seq_lens[{b}] = {k} gives a chunk that does not fit int32")
    if sum(q for q, k in zip(q_lens, k_lens) if k) >= INT32_END:
        raise ValueError("query_start_loc: the total of new tokens does not fit int32")

    width = min(attn_chunk_size // page_size, M)
    q_local, k_local, rows = [], [], []
    for b, (q, k) in enumerate(zip(q_lens, k_lens)):
        chunks = range((k - q) // attn_chunk_size, (k - 1) // attn_chunk_size + 1) if q and k else range(0)
        begin = chunks.start * attn_chunk_size // page_size
        used = block_table[b, begin : -(-k // page_size)].tolist() if chunks else []
        for c in chunks:
            first, end = c * attn_chunk_size, min((c + 1) * attn_chunk_size, k)
            q_local.append(end - max(first, k - q))
            k_local.append(end - first)
            pages = used[first // page_size - begin : -(-end // page_size) - begin]
            if not all(0 <= page < INT32_END for page in pages):
                raise IndexError(f"block_table[{b}, {first // page_size}...] = {pages} must be page ids in [0, {INT32_END})")
            rows.append(pages + [0] * (width - len(pages)))
    cu_q = list(accumulate(q_local, initial=0))
    table = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), width)
    return _int32(q_local), _int32(cu_q), _int32(k_local), table


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
