"""decode_attention: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import EXPANDED, FAR_PARAMETERS, FAR_VECTOR, ODD_STRIDE, POOL, READ_ROWS, TABLE
from kernelpair.call.values import permutation, poison, poison_value, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Alias, Inputs
from properties.decode_attention.rows import HOT, lose_keys, loses_keys, make_keys_extreme, mark_keys, rows_of, scales_of
from properties.shared.attention_values import (
    CAPS,
    FAINT_SEED,
    NO_WINDOWS,
    WIDE_WINDOWS,
    cap_of,
    even_query,
    sinks_of,
    steep,
    stretch,
    unusual_heads,
)
from properties.shared.pads import BEYOND, MANY_SLOTS, in_order, more_rows, more_slots, named
from properties.shared.strategies import CROWDS, any_of, around, common, crowded, one_far, shrinking, thinned, together
from reference.checks import are_pads

HEADS = ((1, 1), (8, 8), (3, 1), (5, 1), (16, 1), (17, 1), (8, 2), (12, 4), (34, 2), (35, 35), (130, 65))  # (H, Hkv)
LATENT_HEADS = tuple((heads, 1) for heads in (1, 5, 6, 7, 11, 12, 16, 22, 23, 33, 128))  # absorbed MLA
WIDTHS = (
    (1, 1), (13, 13), (32, 32), (64, 64), (33, 31), (80, 80), (96, 64), (128, 128), (40, 8), (192, 128), (256, 1), (31, 31),
    (23, 40),
)
LATENT_WIDTHS = ((40, 8), (96, 64), (576, 512), (63, 31))
BESIDE = ((8, 8), (12, 4), (35, 35), (24, 12))
SMALL_HEADS = ((3, 1), (8, 2), (34, 2), (8, 8))
SPLITS = (1, 2, 3, 7, 8, 16)
BATCHES = (1, 1, 2, 2, 3, 3, 4, 16, 17, 0)
LENGTHS = (1, 2, 3, 5, 0, *around(8, 16, 32), 48, *around(64, 128), 200, *around(256), 300, *around(512))
MOST_SPLITS = 600  # of a request: more than any of LENGTHS has keys
FARTHEST = 2**16 + 465  # keys of seldom requests: more than 16 bits count
RUN = 5
WORK = 3_000_000  # multiply-adds of a case's scores: 1 ms in the reference
EMULATED_WORK = 300_000
LAYOUTS = {
    "q": READ_ROWS,
    "k_cache": POOL,
    "v_cache": POOL,
    "out": POOL,
    "key": READ_ROWS,
    "value": READ_ROWS,
    "loc": FAR_VECTOR,
    "attn_logits": POOL,
    "req_to_token": TABLE,
    "req_pool_indices": FAR_VECTOR,
    "seq_lens": FAR_VECTOR,
    "encoder_lens": FAR_VECTOR,
    "sinks": FAR_PARAMETERS,
}
INDICES = ("loc", "req_to_token", "req_pool_indices", "seq_lens", "encoder_lens")
VECTORS = ("loc", "req_pool_indices", "seq_lens", "encoder_lens", "sinks")
FUSED = (("k_cache", "v_cache"), ("v_cache", "k_cache"), ("key", "value"))


@dataclass(frozen=True, kw_only=True)
class DecodeAttentionCase(Case):
    """B = len(lens) requests; request b has lens[b] tokens behind encoder[b] encoder slots."""

    lens: tuple[int, ...] = (1,)
    encoder: tuple[int, ...] | None = None
    heads: int = 1
    kv_heads: int = 1
    width: int = 1
    width_v: int = 1
    splits: int = 1
    window: int = 0
    cap: float = 0.0
    sinks: Literal["none", "same", "float32"] = "none"
    cross: bool = False
    write: bool = False
    """key and value are given, for the last token of each request."""
    shared: bool = False
    """v_cache is k_cache[..., :width_v]."""
    value_given: bool = False
    """In a shared buffer: value is given although it is not written."""
    scattered: bool = False
    """Slots in any order, for odd seeds in runs of RUN consecutive ones; else each request has consecutive ones."""
    pad: Literal["none", "negative", "zero", "beyond"] = "none"
    """The pad slot; 0 is also a slot of the caches, which live requests may see; where loc has 64 bits one beyond 32, whose lower
    half is the slot that a live request writes, or 0."""
    pads: tuple[int, ...] = ()
    """Requests whose loc is the pad slot."""
    same_row: bool = False
    """All requests use one row of the request table."""
    values: Literal["random", "one_hot", "equal"] = "random"
    """Random; or so that the result is exact: one key has all the weight, or all have the same."""
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of q; k has the inverse, so that the scores stay where `spread` says. Of v also."""


def keys_of(case: DecodeAttentionCase) -> list[int]:
    """How many keys each request has, before the window cuts them; a pad has none."""
    given = (case.encoder or ()) if case.cross else case.lens
    return [0 if b in case.pads else n for b, n in enumerate(given)]


def behind_of(case: DecodeAttentionCase) -> list[int]:
    """How many encoder slots stand in front of each request's keys."""
    given = [0] * len(case.lens) if case.cross or case.encoder is None else case.encoder
    return [0 if b in case.pads else n for b, n in enumerate(given)]


def live_of(case: DecodeAttentionCase) -> list[int]:
    """The requests that are no pads."""
    return [b for b in range(len(case.lens)) if b not in case.pads]


def pad_slot_of(case: DecodeAttentionCase) -> int | None:
    return {"none": None, "negative": -1, "zero": 0, "beyond": -1 if "loc" in case.int32 else BEYOND}[case.pad]


def work(case: DecodeAttentionCase) -> int:
    """Multiply-adds of the scores."""
    return sum(keys_of(case)) * case.heads * case.width


FIELDS = together({
    "dtype": st.sampled_from(("bfloat16", "float32", "float16")),
    **common(LAYOUTS, INDICES, FUSED * 4),  # as likely as the layouts of one argument
    "splits": st.sampled_from(SPLITS),
    "write": st.booleans(),
    "scattered": st.booleans(),
    "values": st.sampled_from(("random", "random", "random", "one_hot", "equal")),
    "spread": st.sampled_from((1.0, 0.1, 4.0)),
    "size": st.sampled_from((1.0, 1e-3, 0.1, 100.0)),
})
FORMS = st.sampled_from(
    [(False, heads, widths) for heads in HEADS for widths in WIDTHS]
    + [(True, heads, widths) for heads in LATENT_HEADS + HEADS[1:] for widths in LATENT_WIDTHS]
)
KINDS = st.sampled_from(("self", "self", "behind an encoder", "cross"))
BATCH = st.sampled_from(BATCHES)
BUDGET = st.sampled_from((30_000, 30_000, 300_000, WORK))
WINDOW: st.SearchStrategy[int | str] = st.sampled_from(
    (0, 0, 0, -1, 1, 2, "n-1", "n", "n+1", "n/2") * 2 + WIDE_WINDOWS + NO_WINDOWS
)
CAP = st.sampled_from(CAPS)
SINKS: st.SearchStrategy[Literal["none", "same", "float32"]] = st.sampled_from(("none", "none", "same", "float32"))
PADS: st.SearchStrategy[tuple[Literal["none", "negative", "zero", "beyond"], str]] = st.sampled_from(
    (("none", "none"),) * 5
    + (("zero", "last"), ("zero", "some"), ("negative", "some"), ("negative", "all"), ("zero", "none"), ("beyond", "none"))
)
RARE = st.integers(0, 63)
ENCODER = st.integers(0, 9)


@cache
def _lengths(most: int, splits: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in (*LENGTHS, *around(splits, 4 * splits)) if n <= most] or [1])


@st.composite
def strategy(draw: st.DrawFn) -> DecodeAttentionCase:
    """Any call that the contract allows, within the budget of work."""
    fields = one_far(draw(FIELDS), VECTORS)
    shared, (heads, kv_heads), (width, width_v) = draw(FORMS, label="shared, heads, widths")
    batch = draw(BATCH, label="batch")
    most = draw(BUDGET, label="budget") // (heads * width * max(batch, 1))
    length = _lengths(2 ** min(most.bit_length(), 10), fields["splits"])
    if fields["seed"] % 16 == FAINT_SEED and not shared:  # several splits, some of which weigh little
        heads, kv_heads, width, width_v, batch, length = 5, 1, 33, 31, min(batch, 2), any_of(300, 512, 513)
        fields |= {"splits": max(fields["splits"], 3), "values": "random"}
        fields["dtype"] = {"float16": "float32"}.get(fields["dtype"], fields["dtype"])  # float16 has no room for such values
    if fields["seed"] % 32 == 11 and not shared:  # partial results of several requests, far apart
        heads, kv_heads, width, width_v, batch, length = 5, 1, 33, 31, max(2, min(batch, 3)), any_of(200, 300)
        fields |= {"splits": max(fields["splits"], 3), "layout": fields["layout"] | {"attn_logits": "far"}}
    if fields["seed"] % 32 == 18:  # several kv heads over several blocks of keys, in one split
        (heads, kv_heads), (width, width_v), shared = BESIDE[fields["seed"] // 64 % len(BESIDE)], WIDTHS[4], False
        batch, length = max(1, min(batch, 2)), any_of(150, 200, 300)
        fields |= {"splits": 1, "dtype": "bfloat16" if fields["seed"] // 32 % 2 else fields["dtype"]}
    if unusual := unusual_heads(fields["seed"]):
        (heads, kv_heads), (width, width_v), shared = unusual, WIDTHS[batch % 2], False
        batch, length = min(batch, 3), any_of(1, 2, 33)
    if fields["seed"] % 32 == 4:  # slots so small that there are more of them than 16 bits count
        (heads, kv_heads), (width, width_v), shared = SMALL_HEADS[fields["seed"] // 32 % len(SMALL_HEADS)], WIDTHS[0], False
    if fields["seed"] % 32 == 20:
        batch, heads, kv_heads, width, width_v, length = 1, 1, 1, 1, 1, any_of(FARTHEST)
    lens = tuple(draw(length, label="tokens") for _ in range(batch))
    if crowded(fields):
        heads, kv_heads, width, width_v, longest = 1, 1, 1, 1, draw(shrinking(3), label="longest")
        lens = tuple(thinned(fields, [1 + b % longest for b in range(draw(CROWDS, label="crowd"))], 0))
    kind = "behind an encoder" if fields["seed"] % 64 == 20 else draw(KINDS, label="kind")
    encoder = None
    if kind != "self":
        encoder = tuple(draw(length if kind == "cross" else ENCODER, label="encoder") for _ in range(batch))
        encoder = encoder if len(lens) == batch else lens
    if kind == "behind an encoder" and lens == (FARTHEST,):
        encoder = lens
    sizes = {"heads": heads, "kv_heads": kv_heads, "width": width, "width_v": width_v}
    return completed(draw, fields, lens, kind, encoder, shared, sizes)


def completed(
    draw: st.DrawFn, fields: dict[str, Any], lens: tuple[int, ...], kind: str, encoder: tuple[int, ...] | None, shared: bool,
    sizes: dict[str, Any],
) -> DecodeAttentionCase:
    """The case of these sizes, with a window, a cap and sinks."""
    batch, n = len(lens), max(lens, default=0)
    window = draw(WINDOW, label="window")
    exact = fields["values"] != "random"
    pad, which = draw(PADS, label="pads")
    pads = range(batch // 2, batch) if which == "last" else named(which, fields["seed"], batch)
    rare = draw(RARE, label="rare")
    if fields["values"] == "equal" and fields["seed"] % 2:
        fields["splits"] = 1  # else partial means are merged, which rounds
    elif rare % 16 == 15:
        fields["splits"] = min(n + 1, MOST_SPLITS)
    if rare == 60:
        sizes = sizes | {"heads": 0}
    sinks: Literal["none", "same", "float32"] = "none" if exact else draw(SINKS, label="sinks")
    if sizes["heads"] > 256 and not exact:  # each has one of its own
        sinks = "float32"
    cap = 0.0 if exact or fields["seed"] % 16 == FAINT_SEED else draw(CAP, label="cap")
    return DecodeAttentionCase(
        **steep(fields, cap), **sizes, lens=lens, encoder=encoder,
        window=window if isinstance(window, int) else {"n-1": n - 1, "n": n, "n+1": n + 1, "n/2": n // 2}[window],
        cap=cap, sinks=sinks,
        pad=pad, pads=tuple(pads), cross=kind == "cross", shared=shared, value_given=shared and rare % 2 == 1,
        same_row=len(lens) > 1 and fields["values"] != "one_hot" and rare % 16 == 14,
    )


# --- inputs ---


@dataclass(frozen=True)
class SlotTable:
    """Which slot each request's column names, and which of them a query sees."""

    pool: Tensor  # [B] table row of each request
    columns: Tensor  # [R, C] the request table, poison where it is never read
    slots: int  # P
    loc: Tensor  # [B] where new rows are written; of a pad the pad slot
    seen: list[Tensor]  # slots of the visible keys of each request, in order
    hidden: list[Tensor]  # slots of keys in front of the window


def table_of(case: DecodeAttentionCase) -> SlotTable:
    """Slots for every token, in order or scattered, and a table that names no other ones."""
    batch = len(case.lens)
    behind = behind_of(case)
    lengths = keys_of(case)
    # Slots that nobody sees; new rows go there where there is no last token.
    spare = batch + 2 + more_slots(case.seed, case.layout, case.kv_heads * (case.width + case.width_v))
    width = max([b + n for b, n in zip(behind, lengths)], default=0) + 2
    more = more_rows(case.seed, case.layout, width)
    rows, pool = batch + 2 + more, permutation(case.seed, "pool", batch + 2)[:batch] + more
    if case.same_row and batch:
        pool[:] = pool[0]
    owners = [0] * batch if case.same_row else list(range(batch))
    tokens = [max((behind[i] + lengths[i] for i in range(batch) if owners[i] == b), default=0) for b in range(batch)]
    slots = sum(tokens) + spare
    free = _scattered(case.seed, slots) if case.scattered or slots > MANY_SLOTS else in_order(case.seed, slots, spare)
    columns = poison(case.poison, (rows, width), torch.int64)
    starts = [sum(tokens[:b]) for b in range(batch)]
    seen, hidden, loc = [], [], []
    for b in range(batch):
        mine = free[starts[owners[b]] :][: behind[b] + lengths[b]]
        cut = lengths[b] - case.window if not case.cross and 0 < case.window < lengths[b] else 0
        seen.append(mine[behind[b] + cut :])
        hidden.append(mine[behind[b] : behind[b] + cut])
        columns[pool[b], behind[b] + cut : behind[b] + lengths[b]] = seen[b]
        last = lengths[b] > 0 and not case.cross and not case.same_row
        choices = [mine[-1]] if last else []
        loc.append(_new_slot(case, b, [int(slot) for slot in (*choices, free[slots - spare + b], free[-1])]))
    return SlotTable(pool, columns, slots, torch.tensor(loc, dtype=torch.int64), seen, hidden)


def _new_slot(case: DecodeAttentionCase, b: int, choices: list[int]) -> int:
    """Where request b's new row goes: to the first slot that is not the pad; a pad's location is the pad itself."""
    pad = pad_slot_of(case)
    return pad if pad is not None and b in case.pads else next(slot for slot in choices if slot != pad)


def _scattered(seed: int, slots: int) -> Tensor:
    """All slots in a random order, one by one, or as an allocator of small pages leaves them; of very many high ones first."""
    run = RUN if seed % 2 else 1
    many = MANY_SLOTS if slots > MANY_SLOTS else 0
    free = (permutation(seed, "slots", -(-(slots - many) // run))[:, None] * run + torch.arange(run)).flatten() + many
    return torch.cat((free[free < slots], torch.arange(many)))


def inputs(case: DecodeAttentionCase) -> Inputs:
    """Poison in every slot that nobody sees, and in the rows that are about to be written."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    table = table_of(case)
    sm_scale, q_size, k_size = scales_of(case)
    batch, heads = len(case.lens), case.heads
    k = rows_of(case, "k", table.slots, case.width, k_size)
    v = k[..., : case.width_v] if case.shared else rows_of(case, "v", table.slots, case.width_v, case.size)
    mark_keys(case, table, k, v)
    q = uniform(case.seed, "q", (batch, heads, case.width), dtype, q_size) * stretch(case)[1]
    make_keys_extreme(case, table, q, k, v)
    if loses_keys(case):
        lose_keys(case, table, q, k)
    if case.values != "random":
        q.zero_()
        q[..., 0] = (HOT if case.values == "one_hot" else even_query(case)) * stretch(case)[1]
    known = torch.zeros(table.slots, dtype=torch.bool)
    known[torch.cat([*table.seen, *table.hidden, torch.empty(0, dtype=torch.int64)])] = True
    live, pads = live_of(case), list(case.pads)
    key, value = k[table.loc.clamp(min=0)], v[table.loc.clamp(min=0)].clone()
    if case.write:
        known[table.loc[live]] = False
    for name, rows in (("q", q), ("key", key), ("value", value)):
        if case.layout.get(name) != EXPANDED:  # else it would be everybody's row
            rows[pads] = poison_value(case.poison, dtype)
    k[~known] = poison_value(case.poison, dtype)
    if not case.shared:
        v[~known] = poison_value(case.poison, dtype)
    pool, lens, encoder = table.pool, torch.tensor(case.lens, dtype=torch.int64), None
    if case.encoder is not None:
        encoder = torch.tensor(case.encoder, dtype=torch.int64)
    for entries in (pool, lens, encoder):
        if entries is not None:
            entries[pads] = poison_value(case.poison, torch.int64)
    if case.cross:
        lens[:] = poison_value(case.poison, torch.int64)
    loc, pad = table.loc, pad_slot_of(case)
    if not case.write:
        loc[live] = poison_value(case.poison, torch.int64)
    elif live and pad == BEYOND:
        pad += int(loc[live[0]])
    with_value = case.write and (case.value_given or not case.shared)
    return {
        "q": q,
        "k_cache": k,
        "v_cache": Alias("k_cache", _value_part(case)) if case.shared else v,
        "out": poison(case.poison, (batch, heads, case.width_v), dtype),
        "key": key if case.write else None,
        "value": value if with_value else None,
        "loc": loc if case.write or case.pad != "none" else None,
        "attn_logits": poison(case.poison, (batch, heads, case.splits, case.width_v + 1), torch.float32),
        "req_to_token": table.columns,
        "req_pool_indices": pool,
        "seq_lens": lens,
        "encoder_lens": encoder,
        "sinks": sinks_of(case),
        "sm_scale": sm_scale * stretch(case)[0],
        "logit_cap": cap_of(case),
        "sliding_window": case.window,
        "is_cross_attn": case.cross,
        "pad_slot": pad,
    }


def _value_part(case: DecodeAttentionCase) -> Callable[[Tensor], Tensor]:
    """The first columns of the keys; of every second case with another stride where a dimension has the size 1."""

    def view(k_cache: Tensor) -> Tensor:
        part = k_cache[..., : case.width_v]
        slots, heads = (ODD_STRIDE if n == 1 and case.seed % 2 else step for n, step in zip(part.shape[:2], part.stride()))
        return part.as_strided(part.shape, (slots, heads, part.stride(2)))

    return view


def written(case: DecodeAttentionCase, inputs: Inputs) -> Tensor:
    """The slots that new rows go to."""
    mask = torch.zeros(inputs["k_cache"].shape[0], 1, 1, dtype=torch.bool)
    if inputs["key"] is not None:
        loc = inputs["loc"]
        mask[loc[~are_pads(loc, inputs["pad_slot"])].long()] = True
    return mask


def written_values(case: DecodeAttentionCase, inputs: Inputs) -> Tensor:
    """The same; in a shared buffer they come with the keys."""
    return written(case, inputs)


def picture(case: DecodeAttentionCase) -> str:
    """A line a request: its keys, those that the query sees as #."""
    lines = []
    for b, slots in enumerate(table_of(case).seen):
        total, behind = keys_of(case)[b], behind_of(case)[b]
        lines.append(f"{b:>3}  {'e' * behind}{'.' * (total - len(slots))}{'#' * len(slots)}"[:110] + f"  {len(slots)} keys")
    return "\n".join(lines)
