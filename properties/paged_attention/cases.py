"""paged_attention: what is drawn, and the arguments of a case."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR, FAR_COLUMNS, FAR_PARAMETERS, FAR_VECTOR, POOL, READ_ROWS, SHARED, STRIDED, TABLE
from kernelpair.call.layout import FUSED as FUSED_LAYOUT
from kernelpair.call.values import poison
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.paged_attention.factors import descale_far, descales_of, slopes_of
from properties.shared import attention_values as numbers
from properties.shared.pads import MANY_SLOTS, high_first, in_order, more_slots, more_tokens
from properties.shared.strategies import (
    CROWD,
    CROWDS,
    alike,
    any_of,
    around,
    between,
    common,
    crowded,
    one_far,
    thinned,
    together,
)

HEADS = ((1, 1), (4, 1), (8, 1), (3, 1), (16, 1), (2, 2), (8, 2), (12, 4), (35, 35), (130, 65), (40, 2))  # (H, Hkv)
WIDTHS = ((1, 1), (13, 13), (31, 32), (32, 33), (64, 64), (80, 96), (128, 128), (192, 128), (13, 256), (256, 1))
LATENT_WIDTHS = ((8, 32), (32, 64), (64, 512), (7, 24))  # rope, latent
PAGES = (1, 2, 3, 16, 48, 64, 128, 300)
STEP_LENGTHS = (100, 150, 200, 300)  # of single rows: enough for several splits, whatever the page
LONG_STEPS = (320, 450, 600)  # of many heads: several blocks of keys in one split
PAGE_COUNTS = (0, 1, 2, 3, 8)  # sk in whole pages, and one key more or less
ROWS = (1, 2, 0, 3, 5, *around(16, 32), 48, *around(64, 128, 256))
BATCHES = (1, 1, 2, 2, 3, 4, 1, 2, 3, 0)
BUDGET = (40_000, 40_000, 40_000, 400_000, 400_000, 2_000_000)  # multiply-adds of both products
LONG_BUDGET = 6_000_000  # one case in 8, with few heads and small widths: several blocks of keys
CROWDED = [(1, 1 + b % 3) for b in range(CROWD)]  # rows and keys of requests
# More keys than 16 bits count, of one row or of two; a request of several rows behind many others.
FARTHEST = 2**16 + 465
RAREST = {20: [(2, FARTHEST)], 52: [(2, FARTHEST)], 21: [(1, FARTHEST)], 36: [*CROWDED[:69], (600, 605)]}
SHARING = (8, 12)  # of 16: one kv head in memory stands for all
LATE = 300  # rows and more of a request, of which a window hides the first block of keys from the last that share its packed keys
EMULATED_WORK = 3_000_000  # multiply-adds of padded tiles: 5 ms
LAYOUTS = {
    "q": READ_ROWS,
    "k_cache": (*POOL, SHARED, SHARED),  # twice: few cases have several kv heads and rows that stand alone
    "v_cache": (*POOL, SHARED, SHARED),
    "page_table": TABLE,
    "cache_seqlens": FAR_VECTOR,
    "cu_seqlens_q": FAR_VECTOR,
    "qv": READ_ROWS,
    "k_descale": (*FAR_PARAMETERS, FAR),
    "v_descale": (*FAR_PARAMETERS, FAR),
    "sinks": FAR_PARAMETERS,
    "alibi_slopes": FAR_PARAMETERS,
}
INDICES = ("page_table", "cache_seqlens", "cu_seqlens_q")
VECTORS = ("cache_seqlens", "cu_seqlens_q", "sinks", "alibi_slopes")
FUSED = (("k_cache", "v_cache"), ("v_cache", "k_cache"))


@dataclass(frozen=True, kw_only=True)
class PagedAttentionCase(Case):
    """Request b has rows[b] query rows over lens[b] keys."""

    rows: tuple[int, ...] = (1,)
    lens: tuple[int, ...] = (1,)
    page: int = 1
    heads: int = 1
    kv_heads: int = 1
    width: int = 1
    width_v: int = 1
    causal: bool = False
    left: int = -1
    right: int = -1
    cap: float = 0.0
    sinks: Literal["none", "same", "float32"] = "none"
    alibi: bool = False
    """Each query head has a slope."""
    scaled: bool = True
    """softmax_scale is given; else it is derived from the widths."""
    splits: int = 0
    cache: Literal["same", "float8_e4m3fn", "float8_e5m2"] = "same"
    descale: tuple[bool, bool] = (False, False)
    """k_descale and v_descale are given."""
    latent: bool = False
    """qv is given; in the fused layout both caches are views of one buffer, as a latent cache is."""
    gaps: bool = False
    """Rows that belong to no request stand in front of and behind the others."""
    scattered: bool = False
    """Pages in any order."""
    values: numbers.Values = "random"
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of q and v; k has the inverse."""


def work(case: PagedAttentionCase) -> int:
    """Multiply-adds of both products."""
    return sum(q * k for q, k in zip(case.rows, case.lens)) * case.heads * score_width(case)


def score_width(case: PagedAttentionCase) -> int:
    """Of scores and values."""
    return case.width + case.width_v * (2 if case.latent else 1)


def padded_work(case: PagedAttentionCase) -> int:
    """The same in whole tiles."""
    def up(n: int, step: int) -> int:
        return (n + step - 1) // step * step

    group = case.heads // case.kv_heads
    scores = sum(up(q * group, 16) * up(k, 32) for q, k in zip(case.rows, case.lens))
    return scores * case.kv_heads * (up(case.width, 32) + up(case.width_v, 32) * (2 if case.latent else 1))


FIELDS = together({
    "dtype": st.sampled_from(("bfloat16", "float32", "float16")),
    **common(LAYOUTS, INDICES, FUSED),
    "page": st.sampled_from(PAGES),
    "causal": st.booleans(),
    "scaled": st.booleans(),
    "splits": st.sampled_from((0, 0, 1, 2, 3, 7, 100)),
    "alibi": st.sampled_from((False, False, True)),
    "gaps": st.booleans(),
    "scattered": st.booleans(),
    "values": st.sampled_from(("random", "random", "random", "one_hot", "equal")),
    "spread": st.sampled_from((1.0, 0.1, 4.0)),
    "size": st.sampled_from((1.0, 1e-3, 0.1, 100.0)),
})
KINDS = st.sampled_from(("same", "same", "same", "float8_e4m3fn", "float8_e5m2", "latent"))
WINDOW: st.SearchStrategy[int | str] = st.sampled_from((-1, -1, -1, 0, 1, "sk-1", "sk", "sk/2", 2**62, 2**63 - 1))
CAP = st.sampled_from(numbers.CAPS)
SINKS: st.SearchStrategy[Literal["none", "same", "float32"]] = st.sampled_from(("none", "none", "same", "float32"))
DESCALE = st.sampled_from(((False, False), (True, True), (True, False), (False, True)))


@cache
def _lengths(most: int, page: int, single: bool) -> st.SearchStrategy[int]:
    sizes = [1, *(n for pages in PAGE_COUNTS for n in around(pages * page)), *(STEP_LENGTHS if single else ())]
    return st.sampled_from([n for n in sizes if n <= most] or [1])


@cache
def _rows(most: int, length: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in (*ROWS, *around(length)) if n <= most] or [1])


def _layer(draw: st.DrawFn, fields: dict[str, Any], latent: bool, rare: int) -> tuple[int, int, int, int]:
    """Heads, kv heads and widths; `rare`, or the seed, names those that few cases have."""
    heads, kv_heads = draw(any_of(*HEADS), label="heads")
    width, width_v = draw(any_of(*(LATENT_WIDTHS if latent else WIDTHS)), label="widths")
    if latent and draw(between(0, 7), label="latents"):
        heads, kv_heads = heads // kv_heads, 1  # else several groups of heads, each with a latent
    if rare % 8 == 7:
        heads, kv_heads = HEADS[rare // 8 % 3]
        width, width_v = (LATENT_WIDTHS if latent else WIDTHS)[rare // 8 % 5 % (3 if latent else 5)]
    if latent and rare % 20 == 13:  # many heads over one latent, as after absorption
        kv_heads = 1 + rare // 40 % 2
        heads, (width, width_v) = 33 * kv_heads, LATENT_WIDTHS[rare // 20 % 2]
    if latent and rare % 12 == 5:  # groups of heads, each with a latent, and one rope part for all of them
        heads, kv_heads = 8, 2
        fields["layout"] = {name: kind for name, kind in fields["layout"].items() if name != "v_cache"} | {"k_cache": SHARED}
    if not latent and rare % 16 in SHARING and kv_heads == 1:
        heads, kv_heads = HEADS[-4]
    if (unusual := numbers.unusual_heads(fields["seed"])) and not latent:
        (heads, kv_heads), (width, width_v) = unusual, WIDTHS[rare % 3]
        if heads > 256:  # each has a slope of its own
            fields |= {"alibi": True, "values": "random"}
    return heads, kv_heads, width, width_v


@st.composite
def strategy(draw: st.DrawFn) -> PagedAttentionCase:
    """Any call that the contract allows, within the budget of work."""
    fields = one_far(draw(FIELDS), VECTORS)
    kind = draw(KINDS, label="kind")
    latent, batch = kind == "latent", draw(any_of(*BATCHES), label="batch")
    budget, rare = draw(any_of(*BUDGET), label="budget"), draw(between(0, 119), label="rare")
    if rare % 8 == 7:
        budget = LONG_BUDGET
    if rare % 8 == 7 or rare % 40 == 19 or (numbers.unusual_heads(fields["seed"]) and not latent):
        batch = min(batch, 2)
    heads, kv_heads, width, width_v = _layer(draw, fields, latent, rare)
    few = rare % 60 == 58  # one row over few keys: its kv heads are shared out to threads
    if few:
        batch, (heads, kv_heads) = 1, (8, 1 if latent else 2)
        fields["alibi"] = True
    many = (rare % 60 == 28 or rare % 30 == 13) and not latent
    if many:  # heads over several blocks of keys; the kv heads of one row are shared out to threads
        batch, (heads, kv_heads), (width, width_v), fields["splits"] = 1, HEADS[-1], (128, 128), 1
    if both := many and rare % 30 == 13:  # those of two rows are in one split, of tiles where there are any
        batch, (width, width_v), fields["dtype"] = 2, (64, 64), "bfloat16"
    most = budget // (heads * (width + width_v) * max(batch, 1))
    single = rare % 5 == 3 or (latent and rare % 24 == 5)  # one row a request at most, as in decoding: it takes another engine
    if single:
        most = max(most, min(max(STEP_LENGTHS), LONG_BUDGET // (heads * (width + width_v) * max(batch, 1))))
    if few:
        most = min(most, 63)
    sloped = rare % 20 == 18 and not few  # single rows with slopes, in several splits
    if (far_back := rare % 40 == 19 and not latent) or sloped:  # the former are several rows, which see keys far back
        fields |= {"alibi": True, "values": "random", "splits": max(fields["splits"], 2)}
    lengths = LONG_STEPS if many else (150, 200, 300) if sloped else (300, 270, 400) if far_back else ()
    length = any_of(*lengths) if lengths else _lengths(max(1, most), fields["page"], single)
    lens = tuple(draw(length, label="keys") for _ in range(batch))
    lens = alike(fields, "cache_seqlens", lens)
    rows = tuple(draw(_rows(max(1, most // max(n, 1)), n), label="rows") for n in lens)
    if (heads > 256 and not single) or far_back:  # slopes of several rows, over several keys
        rows, lens = tuple(max(n, 2) for n in rows), tuple(max(n, 3) for n in lens)
    if single:
        rows = tuple(min(1, n) for n in (lens if both or sloped else rows))
    if fields["seed"] % 64 in RAREST or crowded(fields):
        heads, kv_heads, width, width_v = 1, 1, 1, 1
        crowd = draw(CROWDS, label="crowd")
        requests = RAREST.get(fields["seed"] % 64) or thinned(fields, CROWDED[:crowd], (0, 0))
        rows, lens = zip(*requests)
    if lens == (FARTHEST,) and fields["seed"] // 64 % 2:
        fields["page"] = FARTHEST - 1  # more slots of one page than 16 bits count
    late = fields["seed"] % 32 == 9 and kind == "same"
    if late:
        (heads, kv_heads), (width, width_v) = HEADS[0], WIDTHS[rare % 3]
        rows, lens = (LATE + rare // 2,), (LATE + rare // 2 + rare % 5,)
    sizes = {"heads": heads, "kv_heads": kv_heads, "width": width, "width_v": width_v}
    case = completed(draw, fields, rows, lens, kind, rare, sizes)
    return replace(case, left=rare % 40 if late else -1) if late or both else case


def completed(
    draw: st.DrawFn, fields: dict[str, Any], rows: tuple[int, ...], lens: tuple[int, ...], kind: str, rare: int,
    sizes: dict[str, Any],
) -> PagedAttentionCase:
    """The case of these sizes, with windows, a cap, sinks and descales."""
    latent, n = kind == "latent", max(lens, default=0)
    named = {"sk-1": max(n - 1, 0), "sk": n, "sk/2": n // 2}
    left, right = (draw(WINDOW, label=side) for side in ("left", "right"))
    if latent and rare % 12 == 5:
        fields["layout"] = {**fields["layout"], "v_cache": FUSED_LAYOUT}
    elif (latent and rare % 2) or rare % 16 == 4:
        # Of a latent's rows either part may come first; caches of serving engines have the value there.
        fields["layout"] = {**fields["layout"], "v_cache" if latent and rare % 3 else "k_cache": FUSED_LAYOUT}
    if not latent and rare % 16 in SHARING:  # one kv head for all
        fields["layout"] = {**fields["layout"], ("k_cache", "v_cache")[fields["seed"] % 2]: SHARED}
    exact = fields["values"] != "random"
    if exact:
        fields["alibi"] = False
    if fields["values"] == "equal" and fields["seed"] % 2:  # else partial means are merged, which rounds
        fields["splits"] = 1
    if kind != "same":  # float8 has no other sizes; a latent value is part of its key
        fields["size"] = 1.0
    cap = 0.0 if exact or fields["seed"] % 16 == numbers.FAINT_SEED else draw(CAP, label="cap")
    descale = (False, False) if latent or exact else draw(DESCALE, label="descale")
    if any(descale) and rare % 8 == 5:  # a factor of each request and kv head, heads apart
        apart = (STRIDED, FAR, FAR_COLUMNS)[rare // 8 % 3]
        fields["layout"] = {**fields["layout"], "k_descale" if descale[0] else "v_descale": apart}
    return PagedAttentionCase(
        **numbers.steep(fields, cap), **sizes, rows=rows, lens=lens,
        left=left if isinstance(left, int) else named[left], right=right if isinstance(right, int) else named[right],
        cap=cap, sinks="none" if exact else draw(SINKS, label="sinks"),
        cache=kind if kind.startswith("float8") else "same", latent=latent,  # type: ignore[arg-type]
        descale=descale,
    )


# --- inputs ---


def rows_of_each(case: PagedAttentionCase) -> int:
    """How many rows each request has, where all have as many; 1 if there is none."""
    return case.rows[0] if case.rows else 1


def of_four_dimensions(case: PagedAttentionCase, given: Inputs) -> Inputs:
    """q, and qv, as [B, S, H, D]: of requests that have equally many rows each."""
    rows, shape = slice(int(given["cu_seqlens_q"][0]), int(given["cu_seqlens_q"][-1])), (len(case.rows), rows_of_each(case))
    return given | {name: given[name][rows].unflatten(0, shape) for name in ("q", "qv") if given[name] is not None}


def seen_keys(case: PagedAttentionCase, b: int) -> range:
    """Keys of request b that some row of it sees."""
    sq, sk = case.rows[b], case.lens[b]
    low = max(0, sk - sq - case.left) if case.left >= 0 else 0
    return range(low, sk) if sq else range(0)


@dataclass(frozen=True)
class KeyPlan:
    """Where the keys of each request are."""

    pages: int
    table: Tensor  # [B, M] page ids, poison where they are never read
    offsets: Tensor  # [B + 1] cu_seqlens_q
    tokens: int  # Tq


def batch_of(case: PagedAttentionCase) -> KeyPlan:
    """Pages for every key that some row sees; the table names no other ones."""
    B, page = len(case.rows), case.page
    columns = [math.ceil(n / page) for n in case.lens]
    width = max(columns, default=0) + case.seed % 3
    table = poison(case.poison, (B, width), torch.int64)
    elements = case.page * case.kv_heads * (case.width + case.width_v)
    pages = sum(columns) + 2 + more_slots(case.seed, case.layout, -(-elements // 4))
    free = high_first(case.seed, "pages", pages) if case.scattered or pages > MANY_SLOTS else in_order(case.seed, pages, 2)
    for b in range(B):
        if not columns[b]:
            continue
        seen = seen_keys(case, b)
        first = seen.start // page if len(seen) else columns[b]
        table[b, first : columns[b]] = free[sum(columns[:b]) :][first : columns[b]]
    before = case.seed % 3 if case.gaps else 0
    before += more_tokens(case.seed, case.layout, case.heads * (case.width + 2 * case.width_v))
    offsets = torch.tensor([before, *case.rows], dtype=torch.int64).cumsum(0)
    return KeyPlan(pages, table, offsets, int(offsets[-1]) + (case.seed % 4 if case.gaps else 0))


def _slots(case: PagedAttentionCase, batch: KeyPlan, b: int) -> Tensor:
    """Flat slots of the keys that request b sees."""
    seen = seen_keys(case, b)
    j = torch.arange(seen.start, seen.stop)
    return batch.table[b, j // case.page] * case.page + j % case.page


def inputs(case: PagedAttentionCase) -> Inputs:
    """Poison in every slot and row that nobody sees, the tails of pages among them."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    held: torch.dtype = dtype if case.cache == "same" else getattr(torch, case.cache)
    batch = batch_of(case)
    B, page, Hkv, D, Dv = len(case.rows), case.page, case.kv_heads, case.width, case.width_v
    k_cache = poison(case.poison, (batch.pages * page, Hkv, D), held)
    v_cache = poison(case.poison, (batch.pages * page, Hkv, Dv), held)
    q = poison(case.poison, (batch.tokens, case.heads, D), dtype)
    qv = poison(case.poison, (batch.tokens, case.heads, Dv), dtype) if case.latent else None
    all_q, all_qv = numbers.queries(case, "q", q.shape), numbers.queries(case, "qv", (batch.tokens, case.heads, Dv))
    if case.values != "random":
        all_qv.zero_()  # the hot element is the first one of q
    live = slice(0 if case.layout.get("q") == EXPANDED else int(batch.offsets[0]), int(batch.offsets[-1]))
    q[live] = all_q[live]
    if qv is not None:
        live = slice(0 if case.layout.get("qv") == EXPANDED else int(batch.offsets[0]), int(batch.offsets[-1]))
        qv[live] = all_qv[live]
    for b in range(B):
        slots, sk = _slots(case, batch, b), case.lens[b]
        if not len(slots):
            continue
        k = numbers.keys(case, f"k{b}", (len(slots), Hkv, D), torch.float32)
        v = numbers.values(case, f"v{b}", (len(slots), Hkv, Dv), torch.float32)
        n = len(slots)
        position = case.rows[b] - 1 if case.causal else 0
        edges = [0, n - 1, n - 1 - position, case.left, case.left + 1, sk % page]
        if not case.latent or case.values != "random":
            numbers.mark(case, f"marked{b}", k, v, edges, n, 400.0 if held.itemsize == 1 else numbers.LARGEST)
        if held != torch.float8_e4m3fn:  # which has no infinity
            p, most = torch.arange(case.rows[b]) + sk - case.rows[b] - seen_keys(case, b).start, case.rows[b] + sk
            seen = numbers.seen_from_to(p, case.left, 0 if case.causal else case.right, most)
            numbers.lose(case, f"lost{b}", k, *seen)
        numbers.make_extreme(case, f"k{b}", k, v, max(case.lens))
        k_cache[slots], v_cache[slots] = k.to(held), v.to(held)
    k_cache, v_cache = k_cache.unflatten(0, (batch.pages, page)), v_cache.unflatten(0, (batch.pages, page))
    of_keys, of_values = descales_of(case)
    q *= descale_far(case)[1]
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "page_table": batch.table,
        "cache_seqlens": torch.tensor(case.lens, dtype=torch.int64),
        "cu_seqlens_q": batch.offsets,
        "qv": qv,
        "k_descale": of_keys if case.descale[0] else None,
        "v_descale": of_values if case.descale[1] else None,
        "sinks": numbers.sinks_of(case),
        "softmax_scale": numbers.sm_scale(case, D) if case.scaled or case.values == "one_hot" else None,
        "causal": case.causal,
        "window_left": case.left,
        "window_right": case.right,
        "softcap": numbers.cap_of(case),
        "num_splits": case.splits,
        "alibi_slopes": slopes_of(case),
    }


def picture(case: PagedAttentionCase) -> str:
    """A line a request: pages of keys, the new ones as #."""
    lines = []
    for b, (rows, keys) in enumerate(zip(case.rows, case.lens)):
        marks = "".join("#" if j >= keys - rows else "c" for j in range(min(keys, 90)))
        pages = "|".join(marks[i : i + case.page] for i in range(0, len(marks), case.page))
        lines.append(f"{b:>3}  {pages}"[:110] + f"  {rows} rows, {keys} keys")
    return "\n".join(lines)
