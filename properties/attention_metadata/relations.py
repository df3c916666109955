"""Relations of attention_metadata, for eager cases; a static case is checked step by step as it is carried out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation, uniform
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.attention_metadata.cases import (
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


@dataclass(frozen=True)
class RequestMetadata:
    """What the metadata says of one request."""

    queries: int
    keys: int
    keys_by_offset: int
    pages: list[int]
    encoder: tuple[int, int, list[int]] | None
    local: list[tuple[int, int, list[int]]]


def rows_of(case: MetadataCase, outputs: Mapping[str, Any]) -> list[RequestMetadata]:
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
        rows.append(RequestMetadata(queries, keys, by_offset, table, encoder, own if case.chunk else []))
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


def _expect_rows(session: Session, case: MetadataCase, given: Inputs, expected: list[RequestMetadata], says: str) -> None:
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
    k_cache, v_cache = cache
    k_slots, v_slots = cache.flatten(1, 2)
    new = [queries_of(case, batch, r) for r in batch.requests]
    total = [keys_of(case, batch, r) for r in batch.requests]
    q = uniform(case.seed, "queries", (sum(new), H, D), torch.float64)
    meta = session.first.outputs
    self_out = paged_attention(
        q, k_cache, v_cache, meta["page_table"], meta["cache_seqlens"], meta["cu_seqlens_q"], causal=True
    )
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
        tables = table, rows, lens, torch.tensor(new, dtype=torch.int64), starts
        extend_attention(q, k_slots[fresh], v_slots[fresh], expected, k_slots, v_slots, *tables, bases, **common)
    longest = max(*total, *(r.encoder for r in batch.requests), 1)
    # Both sides in float64, |q|, |k|, |v| <= 1: scores of D terms and sums of `longest` weights, each rounded once.
    tolerance = torch.tensor(2.0**-53 * 16 * (longest + D + 8))
    session.expect_close("out", self_out, expected, tolerance, "paged attention by page table against slots by token table")
    if given["encoder_lens"] is not None and batch.mode in ONE_QUERY_MODES:
        cross = paged_attention(
            q, k_cache, v_cache, meta["encoder_page_table"], meta["encoder_lens"], meta["cu_seqlens_q"]
        )
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
