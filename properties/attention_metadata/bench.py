"""attention_metadata: what is timed."""

from collections.abc import Callable
from functools import partial

import torch

from kernelpair.call.values import generator, permutation
from kernelpair.contract.pair import Bench, BenchRow, Inputs


def _bench_inputs(requests: int, longest: int, page_size: int) -> Inputs:
    """A decode batch over rows of 8,192 slots in pages of any order."""
    rows, C = 2 * requests, 8192
    lengths = torch.from_numpy(generator(1, "seq_lens").integers(1, longest + 1, size=requests))
    ids = permutation(1, "pages", rows * (C // page_size)).reshape(rows, -1, 1)
    return {
        "steps": (("decode", requests, requests, False),),
        "seq_lens": lengths,
        "req_pool_indices": permutation(1, "rows", rows)[:requests],
        "req_to_token": (ids * page_size + torch.arange(page_size)).flatten(1).to(torch.int32),
        "extend_seq_lens": None,
        "encoder_lens": None,
        "page_size": page_size,
        "num_draft_tokens": 0,
        "speculative_step_id": 0,
        "attn_chunk_size": None,
        "static": None,
    }


def _in_torch(given: Inputs) -> Callable[[], object]:
    """The same with torch operators: no loop over requests, one gather for the table."""
    lengths, rows, table, page = (given[n] for n in ("seq_lens", "req_pool_indices", "req_to_token", "page_size"))

    def run() -> object:
        cache_seqlens, longest = lengths.int(), int(lengths.max())
        cu_q = torch.arange(len(lengths) + 1, dtype=torch.int32)
        cu_k = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        columns = torch.arange(0, longest, page)
        pages = table[rows[:, None], columns] // page
        return cache_seqlens, cu_q, cu_k, torch.where(columns < lengths[:, None], pages, 0).int(), longest

    return run


BENCH_ROWS = [
    BenchRow(
        f"decode, B 256, up to {longest} tokens, page {page}",
        partial(_bench_inputs, 256, longest, page),
        peers={"torch": _in_torch},
    )
    for longest, page in ((2048, 1), (4096, 16), (4096, 64))
]

BENCH = Bench(
    rows=BENCH_ROWS,
    memory="none: a plan gives the sizes of the results, which are all that is allocated",
)
