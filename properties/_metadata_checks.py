"""What else must hold of attention_metadata: relations, wrong calls, and the rows of its benchmark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Bad, BenchRow, Inputs, Relation
from kernelpair.session import Session
from kernelpair.values import generator, permutation, uniform
from properties._metadata_cases import (
    EXTEND_MODES,
    INDICES,
    ONE_QUERY_MODES,
    STATIC_MODES,
    MetadataCase,
    base_of,
    keys_of,
    pages_of,
    queries_of,
    static_of,
)
from reference.decode_attention import decode_attention
from reference.extend_attention import extend_attention
from reference.paged_attention import paged_attention

# --- relations: of eager cases; a static case is checked step by step as it is carried out ---


@dataclass(frozen=True)
class Row:
    """What the metadata says of one request."""

    queries: int
    keys: int
    keys_by_offset: int
    pages: list[int]
    encoder: tuple[int, int, list[int]] | None
    local: list[tuple[int, int, list[int]]]


def rows_of(case: MetadataCase, outputs: Mapping[str, Any]) -> list[Row]:
    """The metadata request by request, without padding."""
    plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in outputs.items()}
    rows, local = [], _local_rows(case, plain)
    for b, keys in enumerate(plain["cache_seqlens"]):
        queries = plain["cu_seqlens_q"][b + 1] - plain["cu_seqlens_q"][b]
        encoder = None
        if plain["encoder_lens"] is not None:
            length, cu = plain["encoder_lens"][b], plain["encoder_cu_seqlens_k"]
            pages = plain["encoder_page_table"][b][: pages_of(length, case.page_size)]
            encoder = length, cu[b + 1] - cu[b], pages
        own, left = [], queries if keys else 0
        while left > 0:
            own.append(local.pop(0) if local else (left, 0, []))
            left -= max(own[-1][0], 1)
        by_offset = plain["cu_seqlens_k"][b + 1] - plain["cu_seqlens_k"][b]
        table = plain["page_table"][b][: pages_of(keys, case.page_size)]
        rows.append(Row(queries, keys, by_offset, table, encoder, own if case.chunk else []))
    return rows


def _local_rows(case: MetadataCase, plain: Mapping[str, Any]) -> list[tuple[int, int, list[int]]]:
    if not case.chunk:
        return []
    lengths = zip(plain["local.seqlens_q"], plain["local.seqlens_k"], plain["local.block_table"])
    return [(q, k, table[: pages_of(k, case.page_size)]) for q, k, table in lengths]


def _of_requests(given: Inputs, which: list[int]) -> Inputs:
    """The same call with these requests only, in this order."""
    names = ("seq_lens", "req_pool_indices", "extend_seq_lens", "encoder_lens")
    part = {name: given[name][which] for name in names if given[name] is not None}
    mode, _, _, encoder = given["steps"][0]
    return given | part | {"steps": ((mode, len(which), len(which), encoder),)}


def _expect_rows(session: Session, case: MetadataCase, given: Inputs, expected: list[Row], says: str) -> None:
    got = rows_of(case, session.run(inputs=given).outputs)
    for b, (row, wanted) in enumerate(zip(got, expected, strict=True)):
        session.expect(row == wanted, "page_table", f"{says}: request {b} is {row}, expected {wanted}")


def _alone(case: MetadataCase, session: Session) -> None:
    for b, row in enumerate(rows_of(case, session.first.outputs)[:2]):
        _expect_rows(session, case, _of_requests(session.inputs(), [b]), [row], f"request {b} alone")


def _permuted(case: MetadataCase, session: Session) -> None:
    order = permutation(case.seed, "order", len(case.requests)).tolist()
    rows = rows_of(case, session.first.outputs)
    expected = [rows[b] for b in order]
    _expect_rows(session, case, _of_requests(session.inputs(), order), expected, "requests in another order")


def _plain(case: MetadataCase, session: Session) -> None:
    """Page ids of a `high` case depend on the table's dtype, which stays as it is there."""
    kept = {"req_to_token"} & set(case.int32) if case.high else set()
    flipped = () if case.int32 else tuple(name for name in INDICES if name != "req_to_token" or not case.high)
    other = replace(case, layout={}, int32=tuple(kept) or flipped)
    result = session.run(other)
    for name, value in session.first.outputs.items():
        if isinstance(value, Tensor):
            session.expect_same(name, result.outputs[name], value, "dense tensors, the other index dtypes")


def _renamed(case: MetadataCase, session: Session) -> None:
    """Every page id i becomes top - i, every slot with it."""
    page, given = case.page_size, session.inputs()
    table = given["req_to_token"]
    columns = pages_of(table.shape[1], page) * case.rows
    used = (table >= 0) & (table < columns * page)
    slots = (columns - 1 - table // page) * page + table % page
    rows = rows_of(case, session.first.outputs)

    def renamed(pages: list[int]) -> list[int]:
        return [columns - 1 - page for page in pages]

    expected = [
        replace(
            row,
            pages=renamed(row.pages),
            encoder=row.encoder and (*row.encoder[:2], renamed(row.encoder[2])),
            local=[(q, k, renamed(pages)) for q, k, pages in row.local],
        )
        for row in rows
    ]
    _expect_rows(session, case, given | {"req_to_token": torch.where(used, slots, table)}, expected, "pages renamed")


def _same_tokens(case: MetadataCase, session: Session) -> None:
    """Token j of a request is in page j // page_size of its row, at j % page_size: where the token table puts it."""
    batch, page = case.batches[0], case.page_size
    table = session.inputs()["req_to_token"].tolist()
    for b, (row, request) in enumerate(zip(rows_of(case, session.first.outputs), batch.requests, strict=True)):
        keys, base = keys_of(case, batch, request), base_of(case, request)
        tokens = [row.pages[j // page] * page + j % page for j in range(keys)]
        session.expect(tokens == table[request.row][base : base + keys], "page_table", f"request {b} finds other tokens")
        if row.encoder is not None:
            found = [row.encoder[2][j // page] * page + j % page for j in range(request.encoder)]
            says = f"request {b} finds other encoder tokens"
            session.expect(found == table[request.row][: request.encoder], "encoder_page_table", says)


def _replayed(case: MetadataCase, session: Session) -> None:
    """The eager builder's batch through static buffers with room for two more, between replays of other batches."""
    given = session.inputs()
    mode, live, _, encoder = given["steps"][0]
    steps = tuple((mode, live, live + pads, encoder) for pads in (0, 2, 0))
    thrice = {name: given[name].repeat(3) for name in ("seq_lens", "req_pool_indices")}
    if encoder:
        thrice["encoder_lens"] = given["encoder_lens"].repeat(3)
    static = static_of(case) | {"max_bs": live + 2}
    result = session.run(inputs=given | thrice | {"steps": steps, "static": static})
    eager = session.first.outputs
    for step in range(3):
        for name, value in eager.items():
            got = result.outputs.get(f"{step}.{name}")
            if isinstance(value, Tensor) and isinstance(got, Tensor):
                part = got[tuple(slice(size) for size in value.shape)]
                session.expect_same(name, part, value, f"replay {step} of the eager builder's batch")


def _attends(case: MetadataCase, session: Session) -> None:
    """paged_attention by this metadata is extend_attention, or decode_attention, by the token table: in float64."""
    batch, given = case.batches[0], session.inputs()
    page, C, H, D = case.page_size, given["req_to_token"].shape[1], 2, 4
    pages = case.rows * pages_of(C, page)
    cache = uniform(case.seed, "cache", (2, pages, page, 1, D), torch.float64)
    k_slots, v_slots = cache.flatten(1, 2)
    new = [queries_of(case, batch, r) for r in batch.requests]
    total = [keys_of(case, batch, r) for r in batch.requests]
    q = uniform(case.seed, "queries", (sum(new), H, D), torch.float64)
    meta = session.first.outputs
    self_out = paged_attention(q, *cache, meta["page_table"], meta["cache_seqlens"], meta["cu_seqlens_q"], causal=True)
    bases = torch.tensor([base_of(case, r) for r in batch.requests], dtype=torch.int64)
    table, rows = given["req_to_token"], given["req_pool_indices"]
    lens, starts = torch.tensor(total, dtype=torch.int64), torch.tensor([0, *new]).cumsum(0)[:-1]
    common: dict[str, Any] = {"sinks": None, "sm_scale": D**-0.5}
    expected = torch.zeros_like(q)
    if batch.mode in ONE_QUERY_MODES:
        logits = torch.zeros(len(total), H, 1, D + 1)
        decode_attention(q, k_slots, v_slots, expected, None, None, None, logits, table, rows, lens, bases, **common)
    else:
        slots = [table[r.row, e - n + b : e + b] for r, n, e, b in zip(batch.requests, new, total, bases.tolist())]
        fresh = torch.cat([*slots, table.new_zeros(0)]).long()
        extend = torch.tensor(new, dtype=torch.int64), starts
        extend_attention(q, k_slots[fresh], v_slots[fresh], expected, k_slots, v_slots, table, rows, lens, *extend, bases, **common)
    longest = max(*total, *(r.encoder for r in batch.requests), 1)
    # Both sides in float64, |q|, |k|, |v| <= 1: scores of D terms and sums of `longest` weights, each rounded once.
    tolerance = torch.tensor(2.0**-53 * 16 * (longest + D + 8))
    session.expect_close("out", self_out, expected, tolerance, "paged attention by page table against slots by token table")
    if given["encoder_lens"] is not None and batch.mode in ONE_QUERY_MODES:
        encoder = meta["encoder_page_table"], meta["encoder_lens"], meta["cu_seqlens_q"]
        cross = paged_attention(q, *cache, *encoder)
        decode_attention(
            q, k_slots, v_slots, expected, None, None, None, logits, table, rows, lens, given["encoder_lens"],
            is_cross_attn=True, **common,
        )  # fmt: skip
        session.expect_close("out", cross, expected, tolerance, "cross attention by encoder table against slots")


def _eager(case: MetadataCase) -> bool:
    return not case.static


def _with_requests(case: MetadataCase) -> bool:
    return not case.static and bool(case.requests)


RELATIONS = {
    "alone": Relation(_alone, "requests do not depend on each other", _with_requests),
    "permute": Relation(_permuted, "permuting requests permutes rows", _with_requests),
    "layout": Relation(_plain, "layout and index dtypes do not matter"),
    "rename": Relation(_renamed, "renaming slots renames pages", lambda case: _with_requests(case) and not case.high),
    "tokens": Relation(_same_tokens, "page tables find the tokens of the token table", _eager),
    "replay": Relation(
        _replayed, "replayed metadata is the eager builder's", lambda case: _eager(case) and case.batches[0].mode in STATIC_MODES
    ),
    "attention": Relation(
        _attends, "paged attention by metadata is slot attention", lambda case: _with_requests(case) and not case.high
    ),
}


# --- wrong calls ---


def _with(**wrong: object) -> Callable[[MetadataCase, Inputs], Inputs]:
    return lambda case, given: given | wrong


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """Another tensor in place of an eager call's."""
    return lambda case, given: None if case.static or given[name] is None else given | {name: change(given[name])}


def _entry(name: str, value: Callable[[Inputs], int]) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """A wrong last entry of an argument."""

    def spoil(case: MetadataCase, given: Inputs) -> Inputs | None:
        if case.static or given[name] is None or not case.requests:
            return None
        wrong = given[name].clone()
        wrong[-1] = value(given)
        return given | {name: wrong}

    return spoil


def _mode(mode: object) -> Callable[[MetadataCase, Inputs], Inputs]:
    return lambda case, given: given | {"steps": tuple((mode, *step[1:]) for step in given["steps"])}


def _slot(slot: Callable[[int, int], int], least: int) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """The last page start of a request is wrong; `least` is the page size from which that can be."""

    def spoil(case: MetadataCase, given: Inputs) -> Inputs | None:
        keys = [keys_of(case, case.batches[0], r) for r in case.batches[0].requests]
        found = [b for b, length in enumerate(keys) if length]
        if case.static or not found or case.page_size < least:
            return None
        request, page = case.requests[found[-1]], case.page_size
        wrong = given["req_to_token"].clone()
        at = base_of(case, request) + (keys[found[-1]] - 1) // page * page
        value = slot(int(wrong[request.row, at]), page)
        if value >= 2**31 and "req_to_token" in case.int32:
            return None
        wrong[request.row, at] = value
        return given | {"req_to_token": wrong}

    return spoil


def _no_extend(case: MetadataCase, given: Inputs) -> Inputs | None:
    return None if case.static or case.batches[0].mode not in EXTEND_MODES else given | {"extend_seq_lens": None}


def _too_many(case: MetadataCase, given: Inputs) -> Inputs:
    """Two requests of 2^30 tokens each, in a table of one entry and stride 0."""
    dtype = torch.int32 if "req_to_token" in case.int32 else torch.int64
    return given | {
        "steps": (("decode", 2, 2, False),),
        "seq_lens": torch.tensor([2**30, 2**30]),
        "req_pool_indices": torch.tensor([0, 0]),
        "req_to_token": torch.zeros(1, 1, dtype=dtype).expand(1, 2**30),
        "extend_seq_lens": None,
        "encoder_lens": None,
        "static": None,
    }


def _static(
    change: Callable[[Inputs, dict[str, Any]], object], needs: Callable[[MetadataCase], bool] = lambda case: True
) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """A replay of one batch in buffers that do not fit; `change` edits the limits and may return other arguments."""

    def spoil(case: MetadataCase, given: Inputs) -> Inputs | None:
        mode, live, _, encoder = given["steps"][0]
        if case.static or mode not in STATIC_MODES or not live or not needs(case):
            return None
        limits = static_of(case)
        wrong = change(given, limits)
        steps = {"steps": ((mode, live, live, encoder),), "static": limits}
        return given | steps | (wrong if isinstance(wrong, dict) else {})

    return spoil


def _has_encoder(case: MetadataCase) -> bool:
    return case.batches[0].encoder and max(r.encoder for r in case.requests) > 0


def _bs_one_less(given: Inputs, limits: dict[str, Any]) -> dict[str, Any]:
    mode, live, _, encoder = given["steps"][0]
    return {"steps": ((mode, live, live - 1, encoder),)}


def _keys_left(case: MetadataCase) -> bool:
    return any(keys_of(case, case.batches[0], r) for r in case.requests)


def _columns(given: Inputs) -> int:
    return int(given["req_to_token"].shape[1])


_TABLE = ("seq_lens", "encoder_lens", "req_to_token")
BAD = {
    "mode_unknown": Bad(_mode("prefill"), ValueError, "mode"),
    "mode_none": Bad(lambda case, given: None if case.draft_steps else _mode(None)(case, given), TypeError, "mode"),
    "page_zero": Bad(_with(page_size=0), ValueError, "page_size"),
    "page_float": Bad(_with(page_size=1.0), TypeError, "page_size"),
    "drafts_negative": Bad(_with(num_draft_tokens=-1), ValueError, "num_draft_tokens"),
    "step_negative": Bad(
        lambda case, given: None if case.draft_steps else given | {"speculative_step_id": -1}, ValueError, "speculative_step_id"
    ),
    "chunk_zero": Bad(_with(attn_chunk_size=0), ValueError, "attn_chunk_size"),
    "chunk_no_multiple": Bad(_with(attn_chunk_size=5, page_size=2), ValueError, "attn_chunk_size"),
    "extend_missing": Bad(_no_extend, ValueError, "extend_seq_lens"),
    "extend_more_than_total": Bad(
        _entry("extend_seq_lens", lambda given: int(given["seq_lens"][-1]) + 1), ValueError, "extend_seq_lens"
    ),
    "extend_negative": Bad(_entry("extend_seq_lens", lambda given: -1), ValueError, "extend_seq_lens"),
    "length_negative": Bad(_entry("seq_lens", lambda given: -1), ValueError, ("seq_lens", "extend_seq_lens")),
    "length_beyond_table": Bad(_entry("seq_lens", lambda given: _columns(given) + 1), IndexError, "seq_lens"),
    "encoder_negative": Bad(_entry("encoder_lens", lambda given: -1), ValueError, "encoder_lens"),
    "encoder_beyond_table": Bad(_entry("encoder_lens", lambda given: _columns(given) + 1), IndexError, _TABLE),
    "row_negative": Bad(_entry("req_pool_indices", lambda given: -1), IndexError, "req_pool_indices"),
    "row_too_large": Bad(
        _entry("req_pool_indices", lambda given: len(given["req_to_token"])), IndexError, "req_pool_indices"
    ),
    "page_start": Bad(_slot(lambda slot, page: slot + 1 if slot + 1 < 2**31 else slot - 1, 2), ValueError, "req_to_token"),
    "slot_negative": Bad(_slot(lambda slot, page: -page, 1), IndexError, "req_to_token"),
    "slot_beyond_int32": Bad(_slot(lambda slot, page: 2**31 * page, 1), IndexError, "req_to_token"),
    "totals": Bad(_too_many, ValueError, "seq_lens"),
    "table_rank": Bad(_changed("req_to_token", lambda t: t[None]), ValueError, "req_to_token"),
    "lengths_rank": Bad(_changed("seq_lens", lambda t: t[None]), ValueError, "seq_lens"),
    "lengths_none": Bad(lambda case, given: None if case.static else given | {"seq_lens": None}, TypeError, "seq_lens"),
    **{
        f"{name}_size": Bad(_changed(name, lambda t: t.new_zeros(len(t) + 1)), ValueError, (name, "seq_lens"))
        for name in ("req_pool_indices", "extend_seq_lens", "encoder_lens")
    },
    **{f"{name}_float": Bad(_changed(name, lambda t: t.float()), TypeError, name) for name in INDICES},
    **{f"{name}_uint8": Bad(_changed(name, lambda t: t.to(torch.uint8)), TypeError, name) for name in INDICES},
    "bs_beyond_max": Bad(_static(lambda given, limits: limits.update(max_bs=given["steps"][0][1] - 1)), ValueError, "bs"),
    "bs_below_live": Bad(_static(_bs_one_less), ValueError, ("bs", "seq_lens")),
    "never_captured": Bad(_static(lambda given, limits: limits.update(capture="never")), ValueError, "captured"),
    "topk": Bad(_static(lambda given, limits: limits.update(draft_steps=2, topk=2)), ValueError, "topk"),
    "static_extend": Bad(
        _static(lambda given, limits: {"steps": tuple(("extend", *step[1:]) for step in given["steps"])}), ValueError, "mode"
    ),
    "context_too_long": Bad(
        _static(lambda given, limits: limits.update(max_context_len=0), _keys_left), IndexError, "seq_lens"
    ),
    "encoder_too_long": Bad(
        _static(lambda given, limits: limits.update(max_encoder_len=max(int(given["encoder_lens"].max()) - 1, 0)),
                lambda case: _has_encoder(case) and max(r.encoder for r in case.requests) > 1), IndexError, "encoder_lens"
    ),
    "encoder_without_buffers": Bad(
        _static(lambda given, limits: limits.update(max_encoder_len=0), _has_encoder), ValueError, "encoder_lens"
    ),
}  # fmt: skip


# --- bench ---


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


BENCH = [
    BenchRow(
        f"decode, B 256, up to {longest} tokens, page {page}",
        lambda longest=longest, page=page: _bench_inputs(256, longest, page),  # type: ignore[misc]
        peers={"torch": _in_torch},
    )
    for longest, page in ((2048, 1), (4096, 16), (4096, 64))
]
