"""Cases of local_attention_batches: requests of some new tokens among some total, near the ends of chunks and pages."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from kernelpair.call.layout import FAR_VECTOR, TABLE
from kernelpair.call.values import permutation, poison_value
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared.strategies import CROWD, CROWDS, any_of, around, between, common, crowded, either, near, together

PAGES = (1, 2, 3, 16)
CHUNK_PAGES = (1, 2, 4, 8)
MOST_REQUESTS = 5
MOST_CHUNKS = 3  # of one request: a first, an inner and a last one
MANY_CHUNKS = 12  # where chunks are short
NUMEROUS = around(1, 256, 300)  # chunks of one token: more than a byte counts
MOST_NUMEROUS = 2  # requests of so many
MOST_PAGE_ID = 2**31 - 1
MOST_ENTRIES = 2**20  # of a table: none that is drawn has more, but the longest request in smaller pages would
MOST_SPARE = 2  # table columns beyond the longest request
LONGEST: dict[str, Any] = {  # one chunk of as many keys as int32 holds; pages of high ids, for no relation makes its tokens
    "page_size": MOST_PAGE_ID, "chunk_pages": 1, "requests": ((1, MOST_PAGE_ID),), "high": True,
}  # fmt: skip
ALL_NEW = (  # of such chunks: as many new tokens as int32 holds, and some whose sums no float32 holds
    ((MOST_PAGE_ID, MOST_PAGE_ID),), ((2**24 + 1, 2**24 + 5), (1, 3), (2**25 + 3, 2**25 + 3)),
)  # fmt: skip
BEYOND = LONGEST | {  # chunks that int32 does not hold, of which only the ends have new tokens
    "page_size": 2**31, "requests": ((2, 2**31 + 5), (0, 2**31)), "spare": 0,
}  # fmt: skip
HUGE = {  # pages so large that all of a table's hold more tokens than int64 counts
    "page_size": 2**62, "chunk_pages": 1, "requests": ((2, 5), (1, 1)), "spare": 3, "high": True,
}  # fmt: skip
CROWDED = ((1, 1), (2, 3), (0, 2), (1, 4), (1, 2))  # new and all tokens of a crowd's requests, in turn
MANY_PAGES = 70_000  # more than 16 bits count
WIDE: dict[str, Any] = {  # so many pages of a chunk, and of a request
    "page_size": 1, "chunk_pages": MANY_PAGES, "requests": ((1, 3), (2, MANY_PAGES)),
}  # fmt: skip
ALL_WIDE = WIDE | {"requests": ((MANY_PAGES, MANY_PAGES), (2, 3)), "high": True}  # and as many new tokens of one chunk
MANY_ROWS = {  # so many chunks of one token
    "page_size": 1, "chunk_pages": 1, "requests": ((2, 3), (MANY_PAGES, MANY_PAGES), (1, 1)), "high": True,
}  # fmt: skip
ENDLESS = ((2**62, 4), (16, 2**60))  # pages and their number in a chunk, which int64 does not hold
PAST_A_CHUNK = ((2, 5), (1, 1), (2, 3), (3, 4))  # new and all tokens in a last chunk, which begins with a new one or one before
LAST = HUGE | {"requests": ((2, 2**62 + 5), (1, 1))}  # a chunk whose end, were it full, would be beyond int64

INDICES = ("query_start_loc", "seq_lens", "block_table")
LAYOUTS = dict.fromkeys(INDICES, FAR_VECTOR) | {"block_table": TABLE}


@dataclass(frozen=True, kw_only=True)
class LocalCase(Case):
    """Requests of (new, total) tokens in chunks of chunk_pages pages."""

    page_size: int = 1
    chunk_pages: int = 1
    requests: tuple[tuple[int, int], ...] = ()
    start: int = 0
    """Tokens in front of the first request; of a number beyond int32 there are fewer where the offsets are int32."""
    spare: int = 0
    """Table columns beyond the longest request."""
    high: bool = False
    """Page ids up to the largest int32."""

    @property
    def chunk(self) -> int:
        return self.page_size * self.chunk_pages


@cache
def _requests(chunk: int) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """(new, total): lengths around multiples of the chunk twice as often as any others; the total or the cached part."""
    most = MOST_CHUNKS if chunk > 4 else MANY_CHUNKS
    near = around(*(n * chunk for n in range(most + 1)))
    lengths = st.sampled_from((*range(2), *near, *near, *range(most * chunk)))
    kinds = st.sampled_from(("new tokens", "new tokens", "cached tokens", "one token", "no keys"))
    return st.lists(st.builds(_request, kinds, lengths, lengths), max_size=MOST_REQUESTS).map(tuple)


@cache
def _numerous() -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    lengths = st.sampled_from(NUMEROUS)
    request = st.builds(_request, st.sampled_from(("new tokens", "new tokens", "cached tokens")), lengths, lengths)
    return st.lists(request, min_size=1, max_size=MOST_NUMEROUS).map(tuple)


def _request(kind: str, total: int, part: int) -> tuple[int, int]:
    if kind == "no keys":
        return part, 0
    part = min(part, total)
    if kind == "cached tokens":
        return total - part, total
    return (min(1, total) if kind == "one token" else part), total


FIELDS = together(
    {
        **common(LAYOUTS, INDICES),
        "page_size": st.sampled_from(PAGES),
        "chunk_pages": st.sampled_from(CHUNK_PAGES),
        "start": st.sampled_from((0, 0, 1, 7, MOST_PAGE_ID, 2**40)),
        "spare": st.integers(0, MOST_SPARE),
        "high": st.booleans(),
    }
)


@st.composite
def strategy(draw: st.DrawFn) -> LocalCase:
    """Any lengths, pages, chunks, layouts and index dtypes that the contract allows."""
    fields = draw(FIELDS)
    longest = draw(between(0, 63), label="longest")
    if longest == 63:
        given = draw(any_of(LONGEST["requests"], *ALL_NEW), label="new and all tokens")
        return LocalCase(**fields | LONGEST | {"requests": given} | ({"start": 0} if given in ALL_NEW else {}))
    if longest == 62:
        return LocalCase(**fields | BEYOND | {"int32": tuple(name for name in fields["int32"] if name != "seq_lens")})
    if longest == 61:
        return LocalCase(**fields | HUGE)
    if longest == 60:  # offsets of wrong calls need 64 bits too
        new, total = draw(any_of(*PAST_A_CHUNK), label="past a chunk")
        last = {"requests": ((new, 2**62 + total), (1, 1))}
        return LocalCase(**fields | LAST | last | {"int32": tuple(name for name in fields["int32"] if name == "block_table")})
    if longest == 59:
        page, pages = draw(any_of(*ENDLESS), label="endless")
        return LocalCase(**fields | HUGE | {"page_size": page, "chunk_pages": pages})
    if longest == 56:
        return LocalCase(**near(fields) | (ALL_WIDE if draw(either, label="all new") else WIDE))
    if longest == 55 and fields["seed"] % 2:
        return LocalCase(**near(fields) | MANY_ROWS)
    if crowded(fields, 128):
        return LocalCase(**fields, requests=(CROWDED * CROWD)[: draw(CROWDS, label="crowd")])
    if longest in (57, 58):
        return LocalCase(**fields | {"page_size": 1, "chunk_pages": 1, "requests": draw(_numerous(), label="numerous")})
    requests = draw(_requests(fields["page_size"] * fields["chunk_pages"]), label="requests")
    return LocalCase(**fields, requests=requests)


def start_of(case: LocalCase) -> int:
    """query_start_loc[0]: the lowest bits of a number that leaves int32 no room for what follows."""
    return case.start % 8 if "query_start_loc" in case.int32 else case.start


def pages_of(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def used_pages(case: LocalCase, b: int) -> range:
    new, total = case.requests[b]
    if new == 0 or total == 0:
        return range(0)
    return range((total - new) // case.chunk * case.chunk_pages, pages_of(total, case.page_size))


def inputs(case: LocalCase) -> Inputs:
    """Distinct page ids where the contract looks, poison elsewhere. ValueError for a table that is too large to be tried."""
    B, M = len(case.requests), max((pages_of(k, case.page_size) for _, k in case.requests), default=0) + case.spare
    if B * M > MOST_ENTRIES:
        raise ValueError(f"requests: a table of {B} x {M} pages of {case.page_size} is larger than {MOST_ENTRIES} entries")
    ids = permutation(case.seed, "pages", B * M).reshape(B, M)
    table = torch.full((B, M), int(poison_value(case.poison, torch.int64)))
    for b in range(B):
        used = list(used_pages(case, b))
        table[b, used] = MOST_PAGE_ID - ids[b, used] if case.high else ids[b, used]
    new = torch.tensor([start_of(case), *(q for q, _ in case.requests)])
    return {
        "attn_chunk_size": case.chunk,
        "query_start_loc": new.cumsum(0),
        "seq_lens": torch.tensor([k for _, k in case.requests], dtype=torch.int64),
        "block_table": table,
        "page_size": case.page_size,
    }


RESULTS = ("seqlens_q_local", "cu_seqlens_q_local", "seqlens_k_local", "block_table_local")


def _rows(case: LocalCase) -> list[int]:
    """How many virtual requests each request gives: chunks that hold a new token."""
    return [
        (k - 1) // case.chunk - (k - q) // case.chunk + 1 if q and k else 0
        for q, k in case.requests
    ]


EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": lambda case: not case.requests,
    "no virtual request": lambda case: bool(case.requests) and not sum(_rows(case)),
    "no new tokens": lambda case: any(q == 0 < k for q, k in case.requests),
    "no keys": lambda case: any(q == 0 == k for q, k in case.requests),
    "new tokens without keys": lambda case: any(q > 0 == k for q, k in case.requests),
    "shorter than a chunk and no page multiple": lambda case:
    0 < max((k for _, k in case.requests), default=0) < case.chunk and any(k % case.page_size for _, k in case.requests),
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
    "an offset beyond int32": lambda case: start_of(case) >= MOST_PAGE_ID and sum(_rows(case)) > 0,
    "the longest chunk": lambda case: case.page_size == MOST_PAGE_ID,
    "a chunk beyond int32": lambda case: case.chunk > MOST_PAGE_ID,
    "a table of more tokens than int64": lambda case: case.page_size == 2**62,
    "a chunk beyond int64": lambda case: case.chunk > 2**63,
    "a crowd of requests": lambda case: len(case.requests) == CROWD,
    "more pages than 16 bits count": lambda case: case.chunk_pages == MANY_PAGES,
    "more chunks than a byte counts": lambda case: max(_rows(case), default=0) > 255,
    "more chunks than 16 bits count": lambda case: len(case.requests) < CROWD and sum(_rows(case)) > 2**16,
    "as many new tokens as int32 holds": lambda case: sum(q for q, k in case.requests if k) == MOST_PAGE_ID,
    "more new tokens than float32 counts": lambda case: sum(q for q, k in case.requests if k) > 2**24,
    "more new tokens of a chunk than 16 bits count": lambda case: case.chunk_pages == MANY_PAGES == case.requests[0][0],
    "a chunk that would end beyond int64": lambda case: case.chunk == 2**62 < max((k for _, k in case.requests), default=0),
    "highest page ids": lambda case: case.high and sum(_rows(case)) > 0,
    **{f"page {page}": lambda case, page=page: case.page_size == page for page in PAGES},  # type: ignore[misc]
    **{f"C of {n} pages": lambda case, n=n: case.chunk_pages == n for n in CHUNK_PAGES},  # type: ignore[misc]
}
