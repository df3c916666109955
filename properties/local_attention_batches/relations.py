"""local_attention_batches: what holds between calls."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation, uniform
from kernelpair.contract.pair import Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.local_attention_batches.cases import (
    INDICES,
    MOST_PAGE_ID,
    RESULTS,
    LocalCase,
    _rows,
    pages_of,
    start_of,
    used_pages,
)
from reference.paged_attention import paged_attention

# --- relations ---


def _same(session: Session, got: JudgedCall, expected: dict[str, Tensor], says: str) -> None:
    for name, value in expected.items():
        session.expect_same(name, got.outputs[name], value, says)


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
    new = torch.tensor([start_of(case), *(case.requests[b][0] for b in order)])
    other = {"query_start_loc": new.cumsum(0), "seq_lens": given["seq_lens"][order], "block_table": given["block_table"][order]}
    result, first = session.run(shuffled, given | other), 0
    for b in order:
        expected = _part(session.first.outputs, sum(rows[:b]), rows[b])
        part = _part(result.outputs, first, rows[b])
        for name in RESULTS:
            session.expect_same(name, part[name], expected[name], "requests in another order")
        first += rows[b]


def _plain(case: LocalCase, session: Session) -> None:
    fit = INDICES if all(k <= MOST_PAGE_ID for _, k in case.requests) else ("query_start_loc", "block_table")
    other = replace(case, layout={}, int32=() if case.int32 else fit)
    _same(session, session.run(other), session.first.outputs, "dense tensors, the other index dtypes")


def _renamed(case: LocalCase, session: Session) -> None:
    """Every page id i becomes MOST_PAGE_ID - i."""
    result = session.run(replace(case, high=not case.high))
    table, k = session.first.outputs["block_table_local"], session.first.outputs["seqlens_k_local"]
    used = torch.arange(table.shape[1]) < -(-k.long() // case.page_size)[:, None]
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


FAR_CHUNK = 2**30
FAR_TABLE = 2**24 + 16  # columns of what somebody else's kernel may copy: 400 MB at most


def _far_chunks(case: LocalCase, session: Session) -> None:
    """Chunks so far along that a float64 holds neither their first tokens nor their quotients by the chunk: cached tokens one
    below, at and above a multiple of the chunk. The table has one entry, of stride 0, for no memory holds as many. Somebody
    else's kernel may copy all of it, so there it is shorter: 2^54 tokens, beyond which a float64 holds no odd number."""
    if session.subject.foreign:
        page, columns, before = FAR_CHUNK, FAR_TABLE, FAR_TABLE - 1 - case.seed % 7
    else:
        page, columns = FAR_CHUNK >> case.seed % 3, FAR_CHUNK
        before = (2**28 >> case.seed // 9 % 2) - 1 - case.seed % 7  # chunks; float64 holds no 2^57 - 1
    new = 1 + case.seed // 3 % 3
    dtype = torch.int32 if case.seed // 18 % 2 else torch.int64
    totals = [before * FAR_CHUNK + step + new for step in (-1, 0, 1)]
    given = {
        "attn_chunk_size": FAR_CHUNK,
        "query_start_loc": torch.arange(len(totals) + 1) * new,
        "seq_lens": torch.tensor(totals),
        "block_table": torch.full((1, 1), case.seed, dtype=dtype).expand(len(totals), columns),
        "page_size": page,
    }
    own = replace(case, layout={}, int32=("block_table",) if dtype == torch.int32 else ())
    result = session.run(own, given, judged=False, keep_strides=True)  # the reference would be given all of the table
    parts = [_cut(total - new, total) for total in totals]
    keys = [k for part in parts for _, k in part]
    pages = [[case.seed] * pages_of(k, page) + [0] * (FAR_CHUNK // page - pages_of(k, page)) for k in keys]
    wanted = {"seqlens_q_local": [q for part in parts for q, _ in part], "seqlens_k_local": keys, "block_table_local": pages}
    for name, value in wanted.items():
        expected = torch.tensor(value, dtype=torch.int32)
        session.expect_same(name, result.outputs[name], expected, "chunks beyond float64")


def _cut(cached: int, total: int) -> list[tuple[int, int]]:
    """New tokens and keys of each far chunk that holds one of the new tokens, which are fewer than a chunk."""
    first = cached // FAR_CHUNK * FAR_CHUNK
    end = min(first + FAR_CHUNK, total)
    return [(end - cached, end - first), *([(total - end, total - end)] if end < total else [])]


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
    "far": Relation(_far_chunks, "chunks are cut at the same multiples however far along"),
    "anchor": Relation(_anchor, "the worked example comes out as written"),
}
