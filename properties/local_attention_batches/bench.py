"""local_attention_batches: what is timed."""

from collections.abc import Callable
from functools import partial

import torch

from kernelpair.call.values import generator, permutation
from kernelpair.contract.pair import Bench, BenchRow, Inputs

# --- bench ---


def _bench_inputs(requests: int, new: int, chunk: int, page_size: int) -> Inputs:
    """Requests of up to 8,192 tokens with `new` new ones each."""
    columns = 8192 // page_size
    total = torch.from_numpy(generator(1, "seq_lens").integers(new, 8193, size=requests))
    return {
        "attn_chunk_size": chunk,
        "query_start_loc": torch.arange(requests + 1) * new,
        "seq_lens": total,
        "block_table": permutation(1, "pages", requests * columns).reshape(requests, columns).to(torch.int32),
        "page_size": page_size,
    }


def _in_torch(given: Inputs) -> Callable[[], object]:
    """The same with torch operators: no loop over requests, one gather for the table."""
    chunk, starts, totals, table, page_size = given.values()

    def run() -> object:
        new = starts.diff()
        first, count = (totals - new) // chunk, (totals - 1) // chunk - (totals - new) // chunk + 1
        owner = torch.repeat_interleave(count)
        row = torch.arange(len(owner)) - (count.cumsum(0) - count)[owner]
        begin = (first[owner] + row) * chunk
        end = torch.minimum(begin + chunk, totals[owner])
        q = end - torch.maximum(begin, (totals - new)[owner])
        cu = torch.nn.functional.pad(q.cumsum(0), (1, 0)).int()
        columns = torch.arange(min(chunk // page_size, table.shape[1]))
        at = (begin // page_size)[:, None] + columns
        pages = table[owner[:, None], at.clamp(max=table.shape[1] - 1)]
        used = columns < ((end - begin + page_size - 1) // page_size)[:, None]
        return q.int(), cu, (end - begin).int(), torch.where(used, pages, 0).int()

    return run


BENCH_ROWS = [
    BenchRow("{} x {} new, C {}, page {}".format(*sizes), partial(_bench_inputs, *sizes), peers={"torch": _in_torch})
    for sizes in ((256, 1, 2048, 16), (256, 1, 2048, 1), (16, 4096, 512, 16))
]
BENCH = Bench(
    rows=BENCH_ROWS,
    memory="none: a plan gives the sizes of the results, which are all that is allocated",
)
