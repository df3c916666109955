"""mla_decode on trial: one query token per request over paged latents, split in any way, with exactly the workspace asked for."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, POOL, READ_ONLY
from kernelpair.pair import Bound, Inputs, Outputs, Pair, Relation, every_argument
from kernelpair.session import Session
from kernelpair.values import generator, permutation, poison, poison_value, small_integers, uniform
from optimized import operator
from optimized.mla_decode import mla_decode_workspace_size
from properties._attention_values import exact_bound
from properties._mla_decode_bench import BENCH
from properties._mla_decode_errors import BAD
from properties.attention_bound import attention_bound
from properties.strategies import around, common, kernel_paths, together
from reference.decode_attention import decode_attention
from reference.mla_decode import mla_decode
from reference.paged_attention import paged_attention

PAGES = (16, 32, 64, 128)
HEADS = (1, 5, 16, 33, 64, 127, 128)
WIDTHS = ((8, 8), (32, 16), (64, 32), (7, 3), (512, 64))  # (Dl, Dr)
SPLITS = (-1, 1, 2, 7, 128)
BATCHES = (1, 1, 2, 2, 3, 4, 17, 0)
LENGTHS = (1, 2, 0, *around(7, 14, 16, 32), 40, *around(64), 100, *around(128), 300, 513, 520, 600)
WORK = 3_000_000  # multiply-adds of a case's scores
EMULATED_WORK = 300_000
WORKSPACE = 2_000_000  # floats of partial results: more splits of more rows would be half a gigabyte that proves no more
HOT = 16.0  # of a one-hot case: the score is 0 or 256, and exp(-256) is 0 in float32

LAYOUTS = {
    "q_nope": READ_ONLY,
    "q_pe": READ_ONLY,
    "kv_cache": POOL,
    "seq_lens": ANY_STRIDES,
    "page_table": ANY_STRIDES,
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
def cases(draw: st.DrawFn) -> MlaDecodeCase:
    """Any call that the contract allows, within the budget of work."""
    fields = draw(FIELDS)
    heads, (latent, rope) = draw(SIZES, label="heads, widths")
    batch = draw(BATCH, label="batch")
    most = draw(BUDGET, label="budget") // (heads * (latent + rope) * max(batch, 1))
    lens = tuple(draw(_lengths(max(1, min(most, 1024))), label="keys") for _ in range(batch))
    if fields["values"] == "equal":
        fields["splits"] = 1  # a merge of splits rounds
    elif fields["splits"] * batch * heads * latent > WORKSPACE:
        fields["splits"] = WORKSPACE // (batch * heads * latent)
    shared = batch > 1 and fields["values"] != "one_hot" and fields["seed"] % 8 == 1
    return MlaDecodeCase(**fields, lens=lens, heads=heads, latent=latent, rope=rope, shared_pages=shared)


def work(case: MlaDecodeCase) -> int:
    """Multiply-adds of the scores."""
    return sum(case.lens) * case.heads * (case.latent + case.rope)


def _page_table(case: MlaDecodeCase) -> tuple[Tensor, int]:
    """[B, M] pages, poison where none is used, and how many pages there are."""
    used = [-(-n // case.page) for n in case.lens]
    starts = [0 if case.shared_pages else sum(used[:b]) for b in range(len(used))]
    pages = max([start + count for start, count in zip(starts, used)], default=0) + 2
    free = permutation(case.seed, "pages", pages) if case.scattered else torch.arange(pages)
    table = poison(case.poison, (len(used), max(used, default=0) + case.spare_columns), torch.int64)
    for b, (start, count) in enumerate(zip(starts, used)):
        table[b, :count] = free[start : start + count]
    return table, pages


def keys_of(case: MlaDecodeCase, kv_cache: Tensor, table: Tensor) -> list[Tensor]:
    """The visible latents of each request, [n, Dl + Dr]."""
    used = [-(-n // case.page) for n in case.lens]
    return [kv_cache[table[b, : used[b]].long()].reshape(-1, kv_cache.shape[-1])[:n] for b, n in enumerate(case.lens)]


def _latents(case: MlaDecodeCase, pages: int, table: Tensor, size: float) -> Tensor:
    """[pages, page, Dl + Dr]: poison in slots that nobody sees; marked keys weigh more, a hot one has all the weight.

    A marked latent (the first, the last, three others) is three times as long, so that for some heads it has much of the
    weight: without it one of hundreds of keys could be missing unseen.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape = (pages * case.page, case.latent + case.rope)
    rows = uniform(case.seed, "kv", shape, dtype, size)
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
    rows[~seen] = poison_value(case.poison, dtype)
    return rows.view(pages, case.page, -1)


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
    longest, more = max(case.lens, default=0), 3 if case.larger_workspace else 0
    nbytes = mla_decode_workspace_size(
        longest + 700 * more, batch + more, case.heads + more, case.page, case.latent, case.splits)
    return queries | {
        "kv_cache": _latents(case, pages, table, 3 * case.spread / (sm_scale * D**0.5) / case.size),
        "seq_lens": torch.tensor(case.lens, dtype=torch.int64),
        "page_table": table,
        "workspace": poison(case.poison, (nbytes,), torch.uint8),
        "sm_scale": sm_scale,
        "num_kv_splits": case.splits,
    }


def bound(case: MlaDecodeCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A) over the joint width; the value is part of its key, so its signs are not independent."""
    if case.values == "equal" and case.splits == 1:
        return {}
    if case.values == "one_hot":
        return {"out": exact_bound(getattr(torch, case.dtype), truth["out"])}
    batch, H, Dl = truth["out"].shape
    if not batch:
        return {"out": torch.zeros_like(truth["out"])}
    q = torch.cat([inputs["q_nope"], inputs["q_pe"]], dim=-1)
    N, D = max(case.lens), q.shape[-1]
    keys, seen = torch.zeros(N, batch, D, dtype=torch.float64), torch.zeros(batch, 1, N, dtype=torch.bool)
    for b, latents in enumerate(keys_of(case, inputs["kv_cache"], inputs["page_table"])):
        keys[: len(latents), b], seen[b, :, : len(latents)] = latents, True
    flat = attention_bound(
        q.reshape(1, batch * H, D), keys, keys[..., :Dl], seen, dtype=getattr(torch, case.dtype),
        sm_scale=inputs["sm_scale"], splits=max(case.splits, 1) if case.splits != -1 else 128,
    )
    return {"out": flat.view(batch, H, Dl)}


# --- relations ---


def _close(session: Session, got: Tensor, expected: Tensor, says: str, share: int = 2) -> None:
    tolerance = session.first.bound.get("out")
    if isinstance(tolerance, Tensor):
        session.expect_close("out", got, expected, share * tolerance, says)


def _again(case: MlaDecodeCase, session: Session, says: str, **changed: object) -> None:
    other = session.run(replace(case, layout={}), session.inputs() | changed, judged=False)
    _close(session, other.outputs["out"], session.first.outputs["out"], says)


def _splits(case: MlaDecodeCase, session: Session) -> None:
    splits = {-1: 3, 1: 7, 2: 5, 7: 1}.get(case.splits, 2)  # others come of the budget of scratch
    nbytes = mla_decode_workspace_size(max(case.lens, default=0), len(case.lens), case.heads, case.page, case.latent, splits)
    workspace = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
    _again(case, session, f"{splits} splits", num_kv_splits=splits, workspace=workspace)


def _table_tail(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    table = given["page_table"].long()
    longer = torch.cat([table, torch.full((len(table), 2), 10**6)], dim=1)
    other = session.run(replace(case, layout={}), given | {"page_table": longer}, judged=False)
    session.expect_same("out", other.outputs["out"], session.first.outputs["out"], "more columns, of garbage")


def _repaged(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    page = {16: 64, 32: 16, 64: 128, 128: 32}[case.page]
    counts = [-(-n // page) for n in case.lens]
    table = torch.full((len(counts), max(counts, default=0)), -1)
    cache_ = given["kv_cache"].new_full((sum(counts) + 1, page, given["kv_cache"].shape[2]), torch.nan)
    for b, latents in enumerate(keys_of(case, given["kv_cache"], given["page_table"])):
        first = sum(counts[:b])
        table[b, : counts[b]] = torch.arange(first, first + counts[b])
        cache_[first : first + counts[b]].flatten(0, 1)[: len(latents)] = latents
    _again(case, session, f"pages of {page}", kv_cache=cache_, page_table=table)


def _slots(case: MlaDecodeCase, session: Session) -> None:
    """decode_attention's shared-buffer form, as its reference says."""
    given = session.inputs()
    batch, longest = len(case.lens), max(case.lens, default=0)
    flat = given["kv_cache"].double().flatten(0, 1)[:, None]
    j = torch.arange(longest)
    columns = given["page_table"].long()[:, j // case.page] * case.page + j % case.page
    out = torch.empty(batch, case.heads, case.latent, dtype=torch.float64)
    scratch = torch.empty(batch, case.heads, 1, case.latent + 1)
    q = torch.cat([given["q_nope"], given["q_pe"]], dim=-1).double()
    decode_attention(q, flat, flat[..., : case.latent], out, None, None, None, scratch, columns, torch.arange(batch),
                     given["seq_lens"], None, None, given["sm_scale"])
    _close(session, session.first.outputs["out"], out, "decode_attention in a shared buffer", 1)


def _paged(case: MlaDecodeCase, session: Session) -> None:
    """paged_attention with qv, as its reference says."""
    given = session.inputs()
    pool = given["kv_cache"].double()[:, :, None]
    out = paged_attention(
        given["q_pe"].double(), pool[..., case.latent :], pool[..., : case.latent], given["page_table"], given["seq_lens"],
        torch.arange(len(case.lens) + 1), qv=given["q_nope"].double(), softmax_scale=given["sm_scale"],
    )
    _close(session, session.first.outputs["out"], out, "paged_attention with qv", 1)


def _reordered(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    order = permutation(case.seed, "order", len(case.lens))
    moved = {name: given[name][order] for name in ("q_nope", "q_pe", "seq_lens", "page_table")}
    other = session.run(replace(case, layout={}), given | moved, judged=False)
    expected = torch.empty_like(session.first.outputs["out"])
    expected[order] = other.outputs["out"]
    _close(session, expected, session.first.outputs["out"], "requests in another order")


def _alone(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    rows = []
    for b in range(len(case.lens)):
        own = {name: given[name][b : b + 1] for name in ("q_nope", "q_pe", "seq_lens", "page_table")}
        nbytes = mla_decode_workspace_size(case.lens[b], 1, case.heads, case.page, case.latent, case.splits)
        own["workspace"] = torch.full((nbytes,), 0xFF, dtype=torch.uint8)
        rows.append(session.run(replace(case, layout={}), given | own, judged=False).outputs["out"])
    _close(session, torch.cat(rows), session.first.outputs["out"], "each request alone")


def _renamed(case: MlaDecodeCase, session: Session) -> None:
    given = session.inputs()
    pages = len(given["kv_cache"])
    order = permutation(case.seed, "rename", pages)
    name_of = torch.empty_like(order)
    name_of[order] = torch.arange(pages)
    table = given["page_table"].long()
    real = (table >= 0) & (table < pages)
    table = torch.where(real, name_of[table.clamp(0, pages - 1)], table)
    _again(case, session, "pages renamed", kv_cache=given["kv_cache"][order], page_table=table)


def _dense(case: MlaDecodeCase, session: Session) -> None:
    other = session.run(replace(case, layout={}, int32=() if case.int32 else INDICES), session.inputs(), judged=False)
    _close(session, other.outputs["out"], session.first.outputs["out"], "dense tensors, other index dtypes")


def _has_keys(case: MlaDecodeCase) -> bool:
    return any(case.lens)


RELATIONS = {
    # A merge of splits rounds once more, so the exact mean of equal scores is one split's alone.
    "splits": Relation(_splits, "the number of splits does not matter", lambda case: case.values != "equal"),
    "tail": Relation(_table_tail, "table columns past the last page do not matter"),
    "repage": Relation(_repaged, "the page size does not matter"),
    "slots": Relation(_slots, "equals decode_attention in a shared buffer", _has_keys),
    "paged": Relation(_paged, "equals paged_attention with qv", _has_keys),
    "alone": Relation(_alone, "a batch equals separate calls", lambda case: 1 < len(case.lens) <= 4),
    "order": Relation(_reordered, "permuting requests permutes results", lambda case: len(case.lens) > 1),
    "rename": Relation(_renamed, "renaming pages changes nothing"),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
}


PAIR = Pair(
    name="mla_decode",
    version=1,
    case=MlaDecodeCase,
    cases=cases(),
    inputs=inputs,
    reference=mla_decode,
    optimized=operator("mla_decode"),
    bound=bound,
    scratch=("workspace",),
    layouts=LAYOUTS,
    indices=INDICES,
    relations=RELATIONS,
    paths=kernel_paths("decode_", but=["decode_head_parts"]),
    bad=BAD,
    fuzz=every_argument,
    edges={
        "no requests": lambda case: not case.lens,
        "no keys": lambda case: 0 in case.lens,
        "a partial last page": lambda case: any(n % case.page for n in case.lens),
        "several pages": lambda case: any(n > case.page for n in case.lens),
        "more splits than keys": lambda case: any(0 < n < case.splits for n in case.lens),
        "keys in several splits": lambda case: case.splits > 1 and any(n > case.splits for n in case.lens),
        "automatic splits": lambda case: case.splits == -1 and max(case.lens, default=0) > 512,
        "permuted pages": lambda case: case.scattered,
        "shared pages": lambda case: case.shared_pages,
        "garbage columns": lambda case: case.spare_columns > 0,
        "workspace of a larger batch": lambda case: case.larger_workspace,
        "misaligned workspace": lambda case: case.layout.get("workspace") == "offset" and case.splits > 1,
        "128 heads": lambda case: case.heads == 128,
        **{f"pages of {page}": lambda case, page=page: case.page == page for page in PAGES},  # type: ignore[misc]
        **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype  # type: ignore[misc]
           for dtype in ("bfloat16", "float16", "float32")},
    },
    sharp=lambda case: case.values != "random" or case.dtype == "float32",
    emulated=lambda case: work(case) <= EMULATED_WORK,
    bench=BENCH,
    bench_case=MlaDecodeCase(
        seed=8, dtype="bfloat16", lens=(300, 128), heads=16, latent=512, rope=64, scattered=True, int32=("page_table", "seq_lens")
    ),
    memory="as decode_attention; sums of splits go to workspace, which the caller gives (mla_decode_workspace_size)",
)
