"""local_attention_batches on trial: integers that are rearranged, so everything compares bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernelpair.pair import Bad, BenchRow, Inputs, Pair, Relation, every_argument
from kernelpair.session import Result, Session
from kernelpair.values import generator, permutation, uniform
from optimized.local_attention_batches import local_attention_batches as optimized
from properties._local_cases import (
    CHUNK_PAGES,
    INDICES,
    LAYOUTS,
    MOST_PAGE_ID,
    PAGES,
    LocalCase,
    cases,
    inputs,
    pages_of,
    used_pages,
)
from reference.local_attention_batches import local_attention_batches
from reference.paged_attention import paged_attention

RESULTS = ("seqlens_q_local", "cu_seqlens_q_local", "seqlens_k_local", "block_table_local")


# --- relations ---


def _same(session: Session, got: Result, expected: dict[str, Tensor], says: str) -> None:
    for name, value in expected.items():
        session.expect_same(name, got.outputs[name], value, says)


def _rows(case: LocalCase) -> list[int]:
    """How many virtual requests each request gives: chunks that hold a new token."""
    return [
        len({(k - i) // case.chunk for i in range(1, q + 1)}) if k else 0
        for q, k in case.requests
    ]


def _part(outputs: dict[str, Tensor], first: int, rows: int) -> dict[str, Tensor]:
    """Rows of a result as a call of their own would return them."""
    cu = outputs["cu_seqlens_q_local"][first : first + rows + 1]
    part = {name: outputs[name][first : first + rows] for name in RESULTS if name != "cu_seqlens_q_local"}
    return part | {"cu_seqlens_q_local": cu - cu[0]}


def _alone(case: LocalCase, session: Session) -> None:
    """Each of the first two requests in a call of its own."""
    given, first = session.inputs(), 0
    for b, rows in enumerate(_rows(case)[:2]):
        own = {
            "query_start_loc": given["query_start_loc"][b : b + 2],
            "seq_lens": given["seq_lens"][b : b + 1],
            "block_table": given["block_table"][b : b + 1],
        }
        _same(session, session.run(inputs=given | own), _part(session.first.outputs, first, rows), f"request {b} alone")
        first += rows


def _permuted(case: LocalCase, session: Session) -> None:
    given, rows = session.inputs(), _rows(case)
    order = permutation(case.seed, "order", len(rows)).tolist()
    shuffled = replace(case, requests=tuple(case.requests[b] for b in order))
    new = torch.tensor([case.start, *(case.requests[b][0] for b in order)])
    other = {"query_start_loc": new.cumsum(0), "seq_lens": given["seq_lens"][order], "block_table": given["block_table"][order]}
    result, first = session.run(shuffled, given | other), 0
    for b in order:
        expected = _part(session.first.outputs, sum(rows[:b]), rows[b])
        part = _part(result.outputs, first, rows[b])
        for name in RESULTS:
            session.expect_same(name, part[name], expected[name], "requests in another order")
        first += rows[b]


def _plain(case: LocalCase, session: Session) -> None:
    other = replace(case, layout={}, int32=() if case.int32 else INDICES)
    _same(session, session.run(other), session.first.outputs, "dense tensors, the other index dtypes")


def _renamed(case: LocalCase, session: Session) -> None:
    """Every page id i becomes MOST_PAGE_ID - i."""
    result = session.run(replace(case, high=not case.high))
    table, k = session.first.outputs["block_table_local"], session.first.outputs["seqlens_k_local"]
    used = torch.arange(table.shape[1]) < -(-k // case.page_size)[:, None]
    renamed = torch.where(used, MOST_PAGE_ID - table, table)
    _same(session, result, session.first.outputs | {"block_table_local": renamed}, "pages renamed")


def _tokens(table: Tensor, page_size: int) -> Tensor:
    return (table[:, :, None] * page_size + torch.arange(page_size)).flatten(1).to(table.dtype)


def _page_free(case: LocalCase, session: Session) -> None:
    """The same tokens as pages of one token."""
    given = session.inputs()
    tokens = {"block_table": _tokens(given["block_table"], case.page_size), "page_size": 1}
    result = session.run(inputs=given | tokens)
    lengths = {name: session.first.outputs[name] for name in RESULTS[:3]}
    _same(session, result, lengths, "pages of one token")
    table = _tokens(session.first.outputs["block_table_local"], case.page_size)
    width = min(table.shape[1], result.outputs["block_table_local"].shape[1])
    used = torch.arange(width) < lengths["seqlens_k_local"][:, None]
    got = result.outputs["block_table_local"][:, :width]
    session.expect_same("block_table_local", got[used], table[:, :width][used], "pages of one token")


def _all_new_tokens(case: LocalCase, session: Session) -> None:
    total = sum(q for q, k in case.requests if k)
    outputs = session.first.outputs
    session.expect(int(outputs["seqlens_q_local"].sum()) == total, "seqlens_q_local", f"the sum is not {total}")
    cu = torch.nn.functional.pad(outputs["seqlens_q_local"].cumsum(0, dtype=torch.int32), (1, 0))
    session.expect_same("cu_seqlens_q_local", outputs["cu_seqlens_q_local"], cu, "the running sum of seqlens_q_local")


def _dense_mask(case: LocalCase, session: Session) -> None:
    """Causal paged attention over the virtual requests is attention under the mask j <= p and j // C = p // C."""
    live = [b for b, (q, k) in enumerate(case.requests) if q and k]
    table, pages = session.inputs()["block_table"], len(case.requests) * session.inputs()["block_table"].shape[1]
    D = 4
    k_cache = uniform(case.seed, "keys", (pages, case.page_size, 1, D), torch.float64)
    v_cache = uniform(case.seed, "values", (pages, case.page_size, 1, D), torch.float64)
    tokens = sum(case.requests[b][0] for b in live)
    q = uniform(case.seed, "queries", (tokens, 1, D), torch.float64)
    local = session.first.outputs
    got = paged_attention(
        q, k_cache, v_cache, local["block_table_local"], local["seqlens_k_local"], local["cu_seqlens_q_local"], causal=True
    )
    first, parts, longest = 0, [q.new_zeros(0, D)], 0
    for b in live:
        new, total = case.requests[b]
        slots = table[b, list(used_pages(case, b))]
        keys, values = k_cache[slots].reshape(-1, D), v_cache[slots].reshape(-1, D)
        j = torch.arange(len(keys)) + used_pages(case, b)[0] * case.page_size
        p = torch.arange(total - new, total)[:, None]
        visible = (j <= p) & (j // case.chunk == p // case.chunk)
        scores = q[first : first + new, 0] @ keys.T * D**-0.5
        parts.append(scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values)
        first, longest = first + new, max(longest, len(keys))
    # Both sides in float64, |q|, |k|, |v| <= 1: scores of D terms and sums of `longest` weights, each rounded once.
    tolerance = torch.tensor(2.0**-53 * 16 * (longest + D + 8))
    session.expect_close("out", got[:, 0], torch.cat(parts), tolerance, "paged attention against the dense mask")


ANCHOR = {
    "attn_chunk_size": 4,
    "query_start_loc": torch.tensor([0, 4, 14, 19]),
    "seq_lens": torch.tensor([6, 17, 9]),
    "block_table": torch.arange(27).reshape(3, 9),
    "page_size": 2,
}
ANCHORED = {
    "seqlens_q_local": [2, 2, 1, 4, 4, 1, 4, 1],
    "cu_seqlens_q_local": [0, 2, 4, 5, 9, 13, 14, 18, 19],
    "seqlens_k_local": [4, 2, 4, 4, 4, 1, 4, 1],
    "block_table_local": [[0, 1], [2, 0], [11, 12], [13, 14], [15, 16], [17, 0], [20, 21], [22, 0]],
}


def _anchor(case: LocalCase, session: Session) -> None:
    result = session.run(inputs=dict(ANCHOR))
    expected = {name: torch.tensor(value, dtype=torch.int32) for name, value in ANCHORED.items()}
    _same(session, result, expected, "the worked example of the contract")


def _has_requests(case: LocalCase) -> bool:
    return bool(case.requests)


RELATIONS = {
    "alone": Relation(_alone, "requests do not depend on each other", _has_requests),
    "permute": Relation(_permuted, "the order of the requests permutes the rows", lambda case: len(case.requests) > 1),
    "layout": Relation(_plain, "layout and index dtypes do not matter"),
    "rename": Relation(_renamed, "renaming pages renames table entries", _has_requests),
    "page": Relation(_page_free, "the page size does not matter", lambda case: case.page_size > 1 and not case.high),
    "sum": Relation(_all_new_tokens, "every new token is in one virtual request"),
    "dense_mask": Relation(_dense_mask, "causal over virtual requests is the chunk mask", lambda case: not case.high),
    "anchor": Relation(_anchor, "the worked example comes out as written"),
}


# --- wrong calls ---


def _with(**wrong: object) -> Callable[[LocalCase, Inputs], Inputs]:
    return lambda case, given: given | wrong


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[LocalCase, Inputs], Inputs]:
    return lambda case, given: given | {name: change(given[name])}


def _entry(name: str, at: int, value: Callable[[LocalCase, Inputs], int]) -> Callable[[LocalCase, Inputs], Inputs | None]:
    """One entry of a vector of a batch that has requests."""

    def spoil(case: LocalCase, given: Inputs) -> Inputs | None:
        if not case.requests:
            return None
        wrong = given[name].clone()
        wrong[at] = value(case, given)
        return given | {name: wrong}

    return spoil


def _too_many_new(case: LocalCase, given: Inputs) -> Inputs | None:
    b = next((b for b, (_, k) in enumerate(case.requests) if k), None)
    if b is None:
        return None
    wrong = given["query_start_loc"].clone()
    wrong[b + 1 :] += case.requests[b][1] - case.requests[b][0] + 1
    return given | {"query_start_loc": wrong}


def _page_id(value: int) -> Callable[[LocalCase, Inputs], Inputs | None]:
    """The last used entry of some request."""

    def spoil(case: LocalCase, given: Inputs) -> Inputs | None:
        used = [(b, used_pages(case, b)[-1]) for b in range(len(case.requests)) if used_pages(case, b)]
        if not used or (value > MOST_PAGE_ID and "block_table" in case.int32):
            return None
        wrong = given["block_table"].clone()
        wrong[used[-1]] = value
        return given | {"block_table": wrong}

    return spoil


def _chunk_too_long(case: LocalCase, given: Inputs) -> Inputs:
    """One page of 2^31 tokens, all of them cached but one."""
    return {
        "attn_chunk_size": 2**31,
        "query_start_loc": torch.tensor([0, 1]),
        "seq_lens": torch.tensor([2**31]),
        "block_table": torch.zeros(1, 1, dtype=torch.int64),
        "page_size": 2**31,
    }


_LENGTHS = ("query_start_loc", "seq_lens")
BAD = {
    "chunk_zero": Bad(_with(attn_chunk_size=0), ValueError, "attn_chunk_size"),
    "chunk_negative": Bad(_with(attn_chunk_size=-16), ValueError, "attn_chunk_size"),
    "chunk_float": Bad(_with(attn_chunk_size=4.0), TypeError, "attn_chunk_size"),
    "page_zero": Bad(_with(page_size=0), ValueError, "page_size"),
    "page_none": Bad(_with(page_size=None), TypeError, "page_size"),
    "chunk_no_multiple": Bad(_with(attn_chunk_size=7, page_size=2), ValueError, "attn_chunk_size"),
    "more_new_than_total": Bad(_too_many_new, ValueError, _LENGTHS),
    "length_negative": Bad(_entry("seq_lens", -1, lambda case, given: -1), ValueError, "seq_lens"),
    "offset_negative": Bad(_entry("query_start_loc", 0, lambda case, given: -1), ValueError, "query_start_loc"),
    "offset_falls": Bad(_entry("query_start_loc", -1, lambda case, given: -1), ValueError, "query_start_loc"),
    "length_beyond_table": Bad(
        _entry("seq_lens", 0, lambda case, given: given["block_table"].shape[1] * case.page_size + 1 + case.requests[0][0]),
        IndexError,
        "seq_lens",
    ),
    "chunk_beyond_int32": Bad(_chunk_too_long, ValueError, "seq_lens"),
    "page_id_negative": Bad(_page_id(-1), IndexError, "block_table"),
    "page_id_beyond_int32": Bad(_page_id(MOST_PAGE_ID + 1), IndexError, "block_table"),
    "table_rank": Bad(_changed("block_table", lambda t: t[None]), ValueError, "block_table"),
    "table_rows": Bad(_changed("block_table", lambda t: t.new_zeros(len(t) + 1, t.shape[1])), ValueError, INDICES),
    "table_none": Bad(_with(block_table=None), TypeError, "block_table"),
    "lengths_size": Bad(_changed("seq_lens", lambda t: t.new_zeros(len(t) + 1)), ValueError, INDICES),
    "offsets_size": Bad(_changed("query_start_loc", lambda t: t[1:]), ValueError, INDICES),
    **{
        f"{name}_float": Bad(_changed(name, lambda t: t.float()), TypeError, name) for name in INDICES
    },
    **{
        f"{name}_uint8": Bad(_changed(name, lambda t: t.to(torch.uint8)), TypeError, name) for name in INDICES
    },
}


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


BENCH = [
    BenchRow("{} x {} new, C {}, page {}".format(*sizes), partial(_bench_inputs, *sizes), peers={"torch": _in_torch})
    for sizes in ((256, 1, 2048, 16), (256, 1, 2048, 1), (16, 4096, 512, 16))
]


PAIR = Pair(
    name="local_attention_batches",
    version=1,
    case=LocalCase,
    cases=cases(),
    inputs=inputs,
    reference=local_attention_batches,
    optimized=optimized,
    results=RESULTS,
    dtypes=(),
    exact_reference=True,
    layouts=LAYOUTS,
    indices=INDICES,
    relations=RELATIONS,
    bad=BAD,
    fuzz=every_argument,
    edges={
        "no requests": lambda case: not case.requests,
        "no virtual request": lambda case: bool(case.requests) and not sum(_rows(case)),
        "no new tokens": lambda case: any(q == 0 < k for q, k in case.requests),
        "no keys": lambda case: any(q == 0 == k for q, k in case.requests),
        "new tokens without keys": lambda case: any(q > 0 == k for q, k in case.requests),
        "shorter than a chunk and no page multiple": lambda case: 0 < max((k for _, k in case.requests), default=0) < case.chunk
        and any(k % case.page_size for _, k in case.requests),
        "table narrower than a chunk": lambda case: pages_of(max((k for _, k in case.requests), default=0), case.page_size)
        + case.spare
        < case.chunk_pages,
        "total at a chunk's end": lambda case: any(q > 0 < k and k % case.chunk == 0 for q, k in case.requests),
        "total one past a chunk's end": lambda case: any(
            q > 0 and k > case.chunk > 1 == k % case.chunk for q, k in case.requests
        ),
        "cached tokens at a chunk's end": lambda case: any(0 < q < k and (k - q) % case.chunk == 0 for q, k in case.requests),
        "three chunks of a request": lambda case: max(_rows(case), default=0) >= 3,
        "tokens in front": lambda case: case.start > 0,
        "highest page ids": lambda case: case.high and sum(_rows(case)) > 0,
        **{f"page {page}": lambda case, page=page: case.page_size == page for page in PAGES},  # type: ignore[misc]
        **{f"C of {n} pages": lambda case, n=n: case.chunk_pages == n for n in CHUNK_PAGES},  # type: ignore[misc]
    },
    bench=BENCH,
    memory="none: a plan gives the sizes of the results, which are all that is allocated",
)
