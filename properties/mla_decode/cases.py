"""mla_decode: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_VECTOR, POOL, READ_ROWS, TABLE
from kernelpair.call.values import generator, permutation, poison, poison_value, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from optimized.mla_decode import mla_decode_workspace_size
from properties.shared.attention_values import extreme, far_latents, level, lose, loses, rising, stretch
from properties.shared.pads import high_first, in_order, more_slots
from properties.shared.renaming import renamed
from properties.shared.strategies import CROWDS, alike, around, common, crowded, thinned, together

PAGES = (16, 32, 64, 128)
HEADS = (1, 5, 11, 16, 33, 64, 127, 128, 260)
WIDTHS = ((8, 8), (32, 16), (64, 32), (7, 3), (512, 64), (25, 6), (17, 0), (16, 70), (530, 5))  # (Dl, Dr)
SPLITS = (-1, 1, 2, 7, 128, 200, 300)
BATCHES = (1, 1, 2, 2, 3, 4, 17, 0)
LENGTHS = (1, 2, 0, *around(7, 14, 16, 32), 40, *around(64), 100, *around(128), 300, 513, 520, 600)
WORK = 3_000_000  # multiply-adds of a case's scores
FARTHEST = 2**16 + 465  # keys of seldom requests: more than 16 bits count
EMULATED_WORK = 300_000
WORKSPACE = 2_000_000  # floats of partial results: more splits of more rows would be half a gigabyte that proves no more
LARGER = 3  # requests, heads and lots of keys more, of a workspace that is made for a larger batch
PAGE_ELEMENTS = 9  # that count as one where pages are many: a page has sixteen keys at least
HOT = 16.0  # of a one-hot case: the score is 0 or 256, and exp(-256) is 0 in float32
LAYOUTS = {
    "q_nope": READ_ROWS,
    "q_pe": READ_ROWS,
    "kv_cache": POOL,
    "seq_lens": FAR_VECTOR,
    "page_table": TABLE,
    "workspace": ("offset",),
}
INDICES = ("seq_lens", "page_table")


@dataclass(frozen=True, kw_only=True)
class MlaDecodeCase(Case):
    """B = len(lens) requests over pages of `page` latents."""

    lens: tuple[int, ...] = (1,)
    heads: int = 1
    latent: int = 8
    rope: int = 8
    page: int = 16
    splits: int = -1
    accurate: bool = False
    scattered: bool = False
    """Pages in any order; else each request has consecutive ones."""
    shared_pages: bool = False
    """All requests read the same pages."""
    spare_columns: int = 0
    """Table columns that nobody uses."""
    larger_workspace: bool = False
    """The workspace is that of a longer and larger batch."""
    values: Literal["random", "one_hot", "equal"] = "random"
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of the queries; latents have the inverse."""


FIELDS = together({
    "dtype": st.sampled_from(("bfloat16", "float32", "float16")),
    **common(LAYOUTS, INDICES),
    "page": st.sampled_from(PAGES),
    "splits": st.sampled_from(SPLITS),
    "accurate": st.booleans(),
    "scattered": st.booleans(),
    "spare_columns": st.sampled_from((0, 1, 3)),
    "larger_workspace": st.booleans(),
    "values": st.sampled_from(("random", "random", "random", "one_hot", "equal")),
    "spread": st.sampled_from((1.0, 0.1, 4.0)),
    "size": st.sampled_from((1.0, 1e-3, 0.1, 100.0)),
})
SIZES = st.sampled_from([(heads, widths) for widths in WIDTHS for heads in HEADS])
BATCH = st.sampled_from(BATCHES)
BUDGET = st.sampled_from((60_000, 60_000, 400_000, WORK))


@cache
def _lengths(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in LENGTHS if n <= most])


@st.composite
def strategy(draw: st.DrawFn) -> MlaDecodeCase:
    """Any call that the contract allows, within the budget of work."""
    fields = draw(FIELDS)
    heads, (latent, rope) = draw(SIZES, label="heads, widths")
    batch = draw(BATCH, label="batch")
    most = draw(BUDGET, label="budget") // (heads * (latent + rope) * max(batch, 1))
    lens = tuple(draw(_lengths(max(1, min(most, 1024))), label="keys") for _ in range(batch))
    lens = alike(fields, "seq_lens", lens)
    if fields["seed"] % 32 == 20:
        heads, (latent, rope), lens, batch = 1, WIDTHS[3], (FARTHEST,), 1
    elif crowded(fields):
        heads, (latent, rope), batch = 1, WIDTHS[3], draw(CROWDS, label="crowd")
        lens = tuple(thinned(fields, [1 + b % 3 for b in range(batch)], 0))
    fields = within_workspace(fields, batch, heads, latent)
    shared = batch > 1 and fields["values"] != "one_hot" and fields["seed"] % 8 == 1
    return MlaDecodeCase(**fields, lens=lens, heads=heads, latent=latent, rope=rope, shared_pages=shared)


def within_workspace(fields: dict[str, Any], batch: int, heads: int, latent: int) -> dict[str, Any]:
    """The fields with no more splits than WORKSPACE holds, or than four times as much holds of a larger batch; and one split for
    half of the equal values."""
    more = LARGER if fields["larger_workspace"] else 0
    results = max(batch * heads, (batch + more) * (heads + more) // 4) * latent
    if fields["values"] == "equal" and fields["seed"] % 2:
        return fields | {"splits": 1}  # else partial means are merged, which rounds
    if fields["splits"] * results > WORKSPACE:
        return fields | {"splits": max(WORKSPACE // results, 1)}
    return fields


def work(case: MlaDecodeCase) -> int:
    """Multiply-adds of the scores."""
    return sum(case.lens) * case.heads * (case.latent + case.rope)


def _page_table(case: MlaDecodeCase) -> tuple[Tensor, int]:
    """[B, M] pages, poison where none is used, and how many pages there are."""
    used = [-(-n // case.page) for n in case.lens]
    starts = [0 if case.shared_pages else sum(used[:b]) for b in range(len(used))]
    pages = max([start + count for start, count in zip(starts, used)], default=0) + 2
    free = permutation(case.seed, "pages", pages) if case.scattered else in_order(case.seed, pages, 2)
    table = poison(case.poison, (len(used), max(used, default=0) + case.spare_columns), torch.int64)
    for b, (start, count) in enumerate(zip(starts, used)):
        table[b, :count] = free[start : start + count]
    return table, pages


def _latents(case: MlaDecodeCase, pages: int, table: Tensor, size: float) -> Tensor:
    """[pages, page, Dl + Dr]: poison in slots that nobody sees; marked keys weigh more, a hot one has all the weight.

    A marked latent (the first, the last, three others) is three times as long, so that for some heads it has much of the
    weight: without it one of hundreds of keys could be missing unseen.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape = (pages * case.page, case.latent + case.rope)
    rows = level(case, "kv", uniform(case.seed, "kv", shape, dtype, size))
    if case.values != "random":
        rows = small_integers(case.seed, "kv", shape, dtype)
        rows[:, 0] = 0
    seen = torch.zeros(len(rows), dtype=torch.bool)
    for b, n in enumerate(case.lens):
        j = torch.arange(n)
        slots = table[b, j // case.page] * case.page + j % case.page
        seen[slots] = True
        drawn = generator(case.seed, f"marked{b}").integers(0, max(n, 1), size=3).tolist()
        if n and case.values == "one_hot":
            rows[slots[drawn[0]], 0] = HOT
        elif n and case.values == "random" and not case.shared_pages:
            rows[torch.unique(slots[[0, n - 1, *drawn]])] *= 3
        if loses_keys(case):
            keys = rows[slots][:, None]
            lose(case, f"lost{b}", keys, torch.tensor([0]), torch.tensor([n]), -1)
            rows[slots] = keys[:, 0]
    rows[~seen] = poison_value(case.poison, dtype)
    return rows.view(pages, case.page, -1)


def _among_many(case: MlaDecodeCase, table: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
    """The table and the cache, of seldom cases with more pages than 16 bits count; those that are seen have larger numbers."""
    more = more_slots(case.seed, case.layout, -(-case.page * latents.shape[2] // PAGE_ELEMENTS))
    if not more:
        return table, latents
    names = high_first(case.seed, "names of pages", len(latents) + more)[: len(latents)]
    cache_ = poison(case.poison, (len(latents) + more, *latents.shape[1:]), latents.dtype)
    cache_[names] = latents
    return renamed(table, names), cache_


def loses_keys(case: MlaDecodeCase) -> bool:
    """Whether some keys are of no weight, in an element that is no value; of requests that share pages others would lose all."""
    return loses(case) and not case.shared_pages and case.rope > 0


def inputs(case: MlaDecodeCase) -> Inputs:
    """Queries and latents of the wanted spread, and a workspace of exactly the bytes that were asked for."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    batch, D = len(case.lens), case.latent + case.rope
    sm_scale = 1.0 if case.values == "one_hot" else D**-0.5
    table, pages = _page_table(case)
    queries = {
        "q_nope": uniform(case.seed, "q_nope", (batch, case.heads, case.latent), dtype, case.size),
        "q_pe": uniform(case.seed, "q_pe", (batch, case.heads, case.rope), dtype, case.size),
    }
    if case.values != "random":
        queries = {name: torch.zeros_like(q) for name, q in queries.items()}
        queries["q_nope"][..., 0] = HOT if case.values == "one_hot" else 0
    queries = {name: q * stretch(case)[1] / far_latents(case) for name, q in queries.items()}
    if loses_keys(case):
        rising(queries["q_pe"], -1)
    longest, more = max(case.lens, default=0), LARGER if case.larger_workspace else 0
    nbytes = mla_decode_workspace_size(
        longest + 700 * more, batch + more, case.heads + more, case.page, case.latent, case.splits)
    latents = _latents(case, pages, table, 3 * case.spread / (sm_scale * D**0.5) / case.size * far_latents(case))
    table, latents = _among_many(case, table, latents)
    return queries | {
        "kv_cache": latents,
        "seq_lens": torch.tensor(case.lens, dtype=torch.int64),
        "page_table": table,
        "workspace": poison(case.poison, (nbytes,), torch.uint8),
        "sm_scale": sm_scale * stretch(case)[0],
        "num_kv_splits": case.splits,
        "accurate": case.accurate,
    }


EDGES: dict[str, Callable[[Any], bool]] = {
    "no requests": lambda case: not case.lens,
    "no keys": lambda case: 0 in case.lens,
    "no rope part": lambda case: case.rope == 0 and any(case.lens),
    "one length for all": lambda case: case.layout.get("seq_lens") == EXPANDED and any(case.lens),
    "a partial last page": lambda case: any(n % case.page for n in case.lens),
    "a crowd of requests": lambda case: len(case.lens) > 1024,
    "more keys than 16 bits count": lambda case: any(n > 2**16 for n in case.lens),
    "several pages": lambda case: any(n > case.page for n in case.lens),
    "more splits than keys": lambda case: any(0 < n < case.splits for n in case.lens),
    "keys in several splits": lambda case: case.splits > 1 and any(n > case.splits for n in case.lens),
    "automatic splits": lambda case: case.splits == -1 and max(case.lens, default=0) > 512,
    "permuted pages": lambda case: case.scattered,
    "shared pages": lambda case: case.shared_pages,
    "scores of -inf": lambda case: loses_keys(case) and any(n > 1 for n in case.lens),
    "a scale near the end of float32": lambda case: stretch(case)[0] > 1e38 and any(n > 1 for n in case.lens),
    **{f"{kind} latents": lambda case, kind=kind: extreme(case) == kind and any(n > 1 for n in case.lens)  # type: ignore[misc]
       for kind in ("large", "small")},
    "garbage columns": lambda case: case.spare_columns > 0,
    "workspace of a larger batch": lambda case: case.larger_workspace,
    "misaligned workspace": lambda case: case.layout.get("workspace") == "offset" and case.splits > 1,
    "128 heads": lambda case: case.heads == 128,
    "accurate, few heads": lambda case: case.accurate and case.dtype == "bfloat16" and case.heads < 12 and any(case.lens),
    "accurate, many heads": lambda case: case.accurate and case.dtype == "bfloat16" and case.heads >= 12 and any(case.lens),
    **{f"pages of {page}": lambda case, page=page: case.page == page for page in PAGES},  # type: ignore[misc]
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype  # type: ignore[misc]
       for dtype in ("bfloat16", "float16", "float32")},
}
