"""extend_attention: what is drawn, and the arguments of a case."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_PARAMETERS, FAR_VECTOR, POOL, READ_ROWS, SHARED, TABLE
from kernelpair.call.layout import FUSED as FUSED_LAYOUT
from kernelpair.call.values import permutation, poison
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared import attention_values as numbers
from properties.shared.pads import MANY_SLOTS, high_first, in_order, more_rows, more_slots, more_tokens
from properties.shared.strategies import CROWD, CROWDS, any_of, around, common, crowded, either, one_far, thinned, together

HEADS = ((1, 1), (3, 1), (4, 1), (8, 1), (16, 1), (2, 2), (6, 2), (8, 2), (12, 4), (16, 16), (35, 35))  # (H, Hkv)
WIDTHS = (
    (1, 1), (13, 13), (31, 32), (32, 33), (33, 31), (64, 64), (80, 96), (96, 80), (128, 128), (192, 128), (13, 256), (256, 1),
)
LENGTHS = (1, 2, 3, 5, 0, *around(16, 32), 48, *around(64, 256, 512, 768, 1024))
LONG = around(4096)
BATCHES = (1, 1, 2, 2, 3, 4, 5, 0)
BUDGET = (40_000, 40_000, 40_000, 400_000, 400_000, 2_000_000)  # multiply-adds of both products, before rare larger ones
LONG_BUDGET = 6_000_000  # one case in 8, with few heads and small widths: several blocks of keys
RARE_BUDGET = 40_000_000  # one case in 200; reaches 1,024 new tokens
CROWDED = [(1 + b % 2, b % 3) for b in range(CROWD)]  # new and cached tokens of requests
# More keys than 16 bits count; a request of several groups of rows behind many others.
FARTHEST = (2**16 + 465,)
RAREST = {20: [(2, *FARTHEST)], 36: [*CROWDED[:69], (600, 5)]}
EMULATED_WORK = 6_000_000  # multiply-adds of padded tiles: 10 ms
LAYOUTS = {
    "q": READ_ROWS,
    "k": READ_ROWS,
    "v": READ_ROWS,
    "out": POOL,
    "k_cache": (*POOL, SHARED),
    "v_cache": (*POOL, SHARED),
    "req_to_token": TABLE,
    "req_pool_indices": FAR_VECTOR,
    "seq_lens": FAR_VECTOR,
    "extend_seq_lens": FAR_VECTOR,
    "extend_start_loc": FAR_VECTOR,
    "encoder_lens": FAR_VECTOR,
    "sinks": FAR_PARAMETERS,
}
INDICES = ("req_to_token", "req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc", "encoder_lens")
VECTORS = ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc", "encoder_lens", "sinks")
FUSED = (("k", "v"), ("k_cache", "v_cache"), ("v_cache", "k_cache"))


@dataclass(frozen=True, kw_only=True)
class ExtendAttentionCase(Case):
    """Request b has prefixes[b] cached and extends[b] new tokens, behind encoder[b] encoder slots."""

    extends: tuple[int, ...] = (1,)
    prefixes: tuple[int, ...] = (0,)
    encoder: tuple[int, ...] | None = None
    heads: int = 1
    kv_heads: int = 1
    width: int = 1
    width_v: int = 1
    window: int = 0
    cap: float = 0.0
    sinks: Literal["none", "same", "float32"] = "none"
    cross: bool = False
    new_keys: bool = True
    """k and v are given; only a cross-attention call may do without."""
    without: Literal["", "k", "v"] = ""
    """One of k and v that is not given although the other is."""
    foreign_cache: bool = False
    """The caches have one head and other widths: legal as long as nobody reads them."""
    gaps: bool = False
    """Rows that belong to no request lie between the requests' rows, and the requests come in any order."""
    scattered: bool = False
    """Slots in any order; else each request has consecutive ones."""
    same_row: bool = False
    """All requests use one row of the request table."""
    values: numbers.Values = "random"
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of q and v; k has the inverse."""


def keys_of(case: ExtendAttentionCase, b: int) -> int:
    """How many keys request b has."""
    return (case.encoder or ())[b] if case.cross else case.prefixes[b] + case.extends[b]


def work(case: ExtendAttentionCase) -> int:
    """Multiply-adds of both products."""
    scores = sum(e * keys_of(case, b) for b, e in enumerate(case.extends))
    return scores * case.heads * (case.width + case.width_v)


def padded_work(case: ExtendAttentionCase) -> int:
    """The same in whole tiles."""
    def up(n: int, step: int) -> int:
        return (n + step - 1) // step * step

    group = case.heads // case.kv_heads
    scores = sum(up(e * group, 16) * up(keys_of(case, b), 32) for b, e in enumerate(case.extends))
    return scores * case.kv_heads * (up(case.width, 32) + up(case.width_v, 32))


FIELDS = together({
    "dtype": st.sampled_from(("bfloat16", "float32", "float16")),
    **common(LAYOUTS, INDICES, FUSED),
    "gaps": st.booleans(),
    "scattered": st.booleans(),
    "values": st.sampled_from(("random", "random", "random", "one_hot", "equal")),
    "spread": st.sampled_from((1.0, 0.1, 4.0)),
    "size": st.sampled_from((1.0, 1e-3, 0.1, 100.0)),
})
KINDS = st.sampled_from(("self", "self", "self", "behind an encoder", "cross", "foreign cache"))
WINDOW: st.SearchStrategy[int | str] = st.sampled_from(
    (0, 0, 0, -1, 1, 2, "E-1", "E", "E+1", "P", "L", "L+1", "L/2") * 2 + numbers.WIDE_WINDOWS + numbers.NO_WINDOWS
)
CAP = st.sampled_from(numbers.CAPS)
SINKS: st.SearchStrategy[Literal["none", "same", "float32"]] = st.sampled_from(("none", "none", "same", "float32"))
ENCODER = st.sampled_from((1, 2, 0, 5, 9, 16, 33))
RARE = st.integers(0, 3999)


@cache
def _lengths(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in (*LENGTHS, *LONG) if n <= most] or [1])


@st.composite
def _request(draw: st.DrawFn, scores: int) -> tuple[int, int]:
    """New and cached tokens of a request with at most `scores` scores a head: as many of either as come out."""
    if draw(either):
        extend = draw(_lengths(max(1, int(scores**0.5))), label="extend")
        return extend, draw(_lengths(scores // max(extend, 1) - extend if extend else 64), label="prefix")
    prefix = draw(_lengths(max(1, scores // 4)), label="prefix")
    return draw(_lengths(max(1, min(scores // (prefix + 1), int(scores**0.5)))), label="extend"), prefix


@st.composite
def strategy(draw: st.DrawFn) -> ExtendAttentionCase:
    """Any call that the contract allows, within the budget of work."""
    fields = one_far(draw(FIELDS), VECTORS)
    heads, kv_heads = draw(any_of(*HEADS), label="heads")
    width, width_v = draw(any_of(*WIDTHS), label="widths")
    batch = draw(any_of(*BATCHES), label="batch")
    budget, rare = draw(any_of(*BUDGET), label="budget"), draw(RARE, label="rare")
    if rare % 8 == 7:
        budget, batch, (heads, kv_heads) = LONG_BUDGET, min(batch, 2), HEADS[rare // 8 % 3]
        width, width_v = WIDTHS[rare // 24 % 5]
    if rare >= 3980:
        budget, batch, (heads, kv_heads) = RARE_BUDGET, 1, HEADS[rare % 3]
        width, width_v = WIDTHS[rare % 4]
    if rare == 3999:
        heads, kv_heads, width, width_v, budget = 1, 1, 1, 1, 4097 * 4097 * 2
    scores = budget // (heads * (width + width_v) * max(batch, 1))
    if rarest := fields["seed"] % 64 in RAREST or crowded(fields):
        heads, kv_heads, width, width_v = 1, 1, 1, 1
    if unusual := numbers.unusual_heads(fields["seed"]):
        (heads, kv_heads), (width, width_v), scores = unusual, WIDTHS[rare % 3], 100
    requests = [draw(_request(scores), label="request") for _ in range(0 if rarest else batch)]
    if rarest:
        requests = RAREST.get(fields["seed"] % 64) or thinned(fields, CROWDED[: draw(CROWDS, label="crowd")], (0, 0))
    extends, prefixes = tuple(e for e, _ in requests), tuple(p for _, p in requests)
    kind = draw(KINDS, label="kind")
    if fields["seed"] % 128 == 20:
        kind = "behind an encoder"
    encoder = None
    if kind == "cross":
        keys = (0, *prefixes[1:]) if rare % 3 == 0 else prefixes
        prefixes, encoder = tuple(p % 5 for p in prefixes), keys[: len(requests)]
    elif kind == "behind an encoder" and prefixes == FARTHEST:
        encoder = FARTHEST
    elif kind == "behind an encoder":
        encoder = tuple(draw(ENCODER, label="encoder") if len(requests) < 9 else b % 3 for b, _ in enumerate(requests))
    elif kind == "foreign cache" and rare % 4:
        prefixes = (0,) * len(requests)  # else a window hides them
    sizes = {"heads": heads, "kv_heads": kv_heads, "width": width, "width_v": width_v}
    return completed(draw, fields, extends, prefixes, kind, encoder, rare, sizes)


def completed(
    draw: st.DrawFn, fields: dict[str, Any], extends: tuple[int, ...], prefixes: tuple[int, ...], kind: str,
    encoder: tuple[int, ...] | None, rare: int, sizes: dict[str, Any],
) -> ExtendAttentionCase:
    """The case of these sizes, with a window, a cap and sinks."""
    E, P = max(extends, default=0), max(prefixes, default=0)
    window = 1 if kind == "foreign cache" and any(prefixes) else draw(WINDOW, label="window")
    named = {"E-1": E - 1, "E": E, "E+1": E + 1, "P": P, "L": E + P, "L+1": E + P + 1, "L/2": (E + P) // 2}
    if rare % 16 == 3:
        fields["layout"] = {**fields["layout"], "k_cache": FUSED_LAYOUT}
    exact = fields["values"] != "random"
    if rare % 64 == 40:
        sizes = sizes | {"heads": 0}
    sinks: Literal["none", "same", "float32"] = "none" if exact else draw(SINKS, label="sinks")
    if sizes["heads"] > 256 and not exact:  # each has one of its own
        sinks = "float32"
    cap = 0.0 if exact or fields["seed"] % 16 == numbers.FAINT_SEED else draw(CAP, label="cap")
    return ExtendAttentionCase(
        **numbers.steep(fields, cap), **sizes, extends=extends, prefixes=prefixes, encoder=encoder,
        window=window if isinstance(window, int) else named[window],
        cap=cap, sinks=sinks,
        cross=kind == "cross", new_keys=kind != "cross" or rare % 2 == 0,
        without=("", "", "k", "v")[rare // 2 % 4] if kind == "cross" and rare % 2 == 0 else "",
        foreign_cache=kind == "foreign cache",
        same_row=len(extends) > 1 and fields["values"] != "one_hot" and rare % 16 == 15,
    )


# --- inputs ---


@dataclass(frozen=True)
class TokenPlan:
    """Where the tokens of each request are."""

    tokens: int  # T
    start: list[int]  # first row of each request
    pool: Tensor  # [B] table row of each request
    columns: Tensor  # [R, C] the request table, poison where it is never read
    slots: int  # P
    cached: list[Tensor]  # slots of the cached keys that some row of the request sees
    first: list[int]  # number of the first of these keys


def batch_of(case: ExtendAttentionCase) -> TokenPlan:
    """Rows, slots for every cached token, and a table that names no other ones."""
    B = len(case.extends)
    order = permutation(case.seed, "order", B).tolist() if case.gaps else list(range(B))
    per_token = (case.heads + case.kv_heads) * (case.width + case.width_v)
    start, tokens = [0] * B, more_tokens(case.seed, case.layout, per_token)
    for place, b in enumerate(order):
        tokens += (place * 7 + case.seed) % 3 if case.gaps else 0
        start[b] = tokens
        tokens += case.extends[b]
    tokens += case.seed % 4 if case.gaps else 0
    behind = [0 if case.cross or case.encoder is None else case.encoder[b] for b in range(B)]
    cached = [keys_of(case, b) if case.cross else case.prefixes[b] for b in range(B)]
    width = max([behind[b] + keys_of(case, b) for b in range(B)], default=0) + case.seed % 3
    more = more_rows(case.seed, case.layout, width)
    rows, pool = B + 2 + more, permutation(case.seed, "pool", B + 2)[:B] + more
    if case.same_row and B:
        pool[:] = pool[0]
    owner = [0] * B if case.same_row else list(range(B))
    held = [max((behind[b] + cached[b] for b in range(B) if owner[b] == o), default=0) for o in range(B)]
    slots = sum(held) + 2 + more_slots(case.seed, case.layout, case.kv_heads * (case.width + case.width_v))
    free = high_first(case.seed, "slots", slots) if case.scattered or slots > MANY_SLOTS else in_order(case.seed, slots, 2)
    columns = poison(case.poison, (rows, width), torch.int64)
    seen, first = [], []
    for b in range(B):
        hidden = min(max(0, cached[b] - case.window + 1), cached[b]) if case.window > 0 and not case.cross else 0
        mine = free[sum(held[: owner[b]]) :][behind[b] + hidden : behind[b] + cached[b]]
        if case.extends[b] == 0:
            mine = mine[:0]
        columns[pool[b], behind[b] + hidden : behind[b] + hidden + len(mine)] = mine
        seen.append(mine)
        first.append(hidden)
    return TokenPlan(tokens, start, pool, columns, slots, seen, first)


def inputs(case: ExtendAttentionCase) -> Inputs:
    """Poison in every slot and row that nobody sees."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    batch = batch_of(case)
    T, Hkv, D, Dv = batch.tokens, case.kv_heads, case.width, case.width_v
    fresh_k, fresh_v = poison(case.poison, (T, Hkv, D), dtype), poison(case.poison, (T, Hkv, Dv), dtype)
    q = poison(case.poison, (T, case.heads, D), dtype)
    k_cache = poison(case.poison, (batch.slots, Hkv, D), dtype)
    v_cache = poison(case.poison, (batch.slots, Hkv, Dv), dtype)
    all_q = numbers.queries(case, "q", q.shape)
    most = max([keys_of(case, b) for b in range(len(case.extends))], default=0)
    for b, extend in enumerate(case.extends):
        if not extend:  # it sees nothing
            continue
        rows, slots = slice(batch.start[b], batch.start[b] + extend), batch.cached[b]
        new = 0 if case.cross else extend
        k = numbers.keys(case, f"k{b}", (len(slots) + new, Hkv, D))
        v = numbers.values(case, f"v{b}", (len(slots) + new, Hkv, Dv))
        n, W = len(k), case.window
        edges = [0, n - 1, len(slots), len(slots) - 1, *([n - W, n - W - 1] if W > 0 else [])]
        numbers.mark(case, f"marked{b}", k, v, edges, min(n, W) if W > 0 and not case.cross else n)
        p = torch.arange(n - extend, n)  # of each row among these keys
        left, right = (-1, -1) if case.cross else (max(W, 0) - 1, 0)
        if not case.same_row:  # else requests overwrite the keys of others
            numbers.lose(case, f"lost{b}", k, *numbers.seen_from_to(p, left, right, n + extend))
            numbers.make_extreme(case, f"k{b}", k, v, most)
        k_cache[slots], v_cache[slots] = k[: len(slots)], v[: len(slots)]
        if new:
            fresh_k[rows], fresh_v[rows] = k[len(slots) :], v[len(slots) :]
        q[rows] = all_q[rows]
    for name, tensor, drawn in (("q", q, all_q), ("k", fresh_k, numbers.keys(case, "k", (1, Hkv, D))),
                                ("v", fresh_v, numbers.values(case, "v", (1, Hkv, Dv)))):
        if case.layout.get(name) == EXPANDED and T:
            tensor[:1] = drawn[:1]  # it stands for every row
    if case.foreign_cache:
        k_cache, v_cache = poison(case.poison, (batch.slots, 1, 7), dtype), poison(case.poison, (batch.slots, 1, 5), dtype)
    return {
        "q": q,
        "k": fresh_k if case.new_keys and case.without != "k" else None,
        "v": fresh_v if case.new_keys and case.without != "v" else None,
        "out": poison(case.poison, (T, case.heads, Dv), dtype),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "req_to_token": batch.columns,
        "req_pool_indices": batch.pool,
        "seq_lens": torch.tensor([p + e for p, e in zip(case.prefixes, case.extends)], dtype=torch.int64),
        "extend_seq_lens": torch.tensor(case.extends, dtype=torch.int64),
        "extend_start_loc": torch.tensor(batch.start, dtype=torch.int64),
        "encoder_lens": None if case.encoder is None else torch.tensor(case.encoder, dtype=torch.int64),
        "sinks": numbers.sinks_of(case),
        "sm_scale": numbers.sm_scale(case, D),
        "logit_cap": numbers.cap_of(case),
        "sliding_window": case.window,
        "is_cross_attn": case.cross,
    }


def written(case: ExtendAttentionCase, inputs: Inputs) -> Tensor:
    """The rows of the requests."""
    mask = torch.zeros(inputs["q"].shape[0], 1, 1, dtype=torch.bool)
    for start, extend in zip(inputs["extend_start_loc"].tolist(), inputs["extend_seq_lens"].tolist()):
        mask[start : start + extend] = True
    return mask


def picture(case: ExtendAttentionCase) -> str:
    """A line a request: encoder slots e, cached keys c, new tokens #."""
    lines = []
    for b, extend in enumerate(case.extends):
        behind = 0 if case.encoder is None else case.encoder[b]
        prefix = 0 if case.cross else case.prefixes[b]
        lines.append(f"{b:>3}  {'e' * behind}{'c' * prefix}{'#' * extend}"[:100] + f"  {prefix} + {extend}")
    return "\n".join(lines)


def _some(case: ExtendAttentionCase, *sizes: int) -> bool:
    return any(n in sizes for n in (*case.extends, *case.prefixes))


def _some_keys(case: ExtendAttentionCase, least: int) -> bool:
    return any(extend and keys_of(case, b) >= least for b, extend in enumerate(case.extends))


EDGES: dict[str, Any] = {
    "no requests": lambda case: not case.extends,
    "no new tokens": lambda case: 0 in case.extends and any(case.extends),
    "no prefix": lambda case: any(e and not p for e, p in zip(case.extends, case.prefixes)) and not case.cross,
    "one new token": lambda case: 1 in case.extends,
    "prefix and new tokens": lambda case: any(e and p for e, p in zip(case.extends, case.prefixes)) and not case.cross,
    "16 around": lambda case: _some(case, *around(16)),
    "32 around": lambda case: _some(case, *around(32)),
    "256 around": lambda case: _some(case, *around(256)),
    "1024 around": lambda case: _some(case, *around(1024)),
    "more keys than 16 bits count": lambda case: _some_keys(case, 2**16),
    "more tokens than 16 bits count": lambda case: any(case.extends) and max(batch_of(case).start) >= 2**16,
    "more of an encoder's slots than 16 bits count": lambda case: not case.cross and max(case.encoder or (0,)) >= 2**16,
    "more rows of the table than 16 bits count": lambda case: any(case.prefixes) and len(batch_of(case).columns) > 2**16,
    "more heads than a byte counts": lambda case: case.heads > 256 and any(case.extends),
    "a crowd of requests": lambda case: len(case.extends) > 1024,
    "a long request behind many": lambda case: len(case.extends) > 64 and case.extends[-1] > 512,
    "cross attention": lambda case: case.cross and any(case.encoder or ()),
    "cross attention without keys": lambda case: case.cross and any(
        e and not n for e, n in zip(case.extends, case.encoder or ())),
    "cross attention without k and v": lambda case: not case.new_keys,
    "cross attention with k or v alone": lambda case: case.without != "",
    "no query heads": lambda case: case.heads == 0 and any(case.extends),
    "a window beyond 32 bits": lambda case: not case.cross and case.window > 2**32 and any(e > 1 for e in case.extends),
    "behind an encoder": lambda case: case.encoder is not None and not case.cross and any(case.prefixes),
    "window cuts": lambda case: not case.cross and 0 < case.window < max(map(sum, zip(case.extends, case.prefixes)), default=0),
    "window of one key": lambda case: case.window == 1 and not case.cross,
    "window behind an encoder": lambda case: bool(case.encoder) and not case.cross and case.window > 0,
    "softcap": lambda case: case.cap > 0,
    "scores of -inf": lambda case: numbers.loses(case) and not case.same_row and _some_keys(case, 2),
    "a scale near the end of float32": lambda case: numbers.stretch(case)[0] > 1e38 and _some_keys(case, 2),
    **{f"{kind} values": lambda case, kind=kind: numbers.extreme(case) == kind and _some_keys(case, 2)
       for kind in ("large", "small", "faint")},
    "sinks": lambda case: case.sinks != "none",
    "sinks without keys": lambda case: case.sinks != "none" and case.cross and 0 in (case.encoder or ()),
    "cache of another shape": lambda case: case.foreign_cache and any(case.extends),
    "cache of another shape behind a window": lambda case: case.foreign_cache and any(
        e and p for e, p in zip(case.extends, case.prefixes)
    ),
    "gaps, any order": lambda case: case.gaps and len(case.extends) > 1,
    "several kv heads share queries": lambda case: 1 < case.kv_heads < case.heads,
    "MHA": lambda case: 1 < case.kv_heads == case.heads,
    "D != Dv": lambda case: case.width != case.width_v,
    "width of 1": lambda case: case.width == 1,
    "scattered slots": lambda case: case.scattered and any(case.prefixes),
    "requests share a table row": lambda case: case.same_row,
    "fused caches": lambda case: case.layout.get("k_cache") == "fused" and any(case.prefixes),
    **{f"dtype {dtype}": lambda case, dtype=dtype: case.dtype == dtype for dtype in ("bfloat16", "float16", "float32")},
}
