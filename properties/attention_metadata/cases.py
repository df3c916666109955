"""Cases of attention_metadata: one batch for the eager builder, or a sequence of batches to replay in static buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.attention_metadata
import reference.attention_metadata
from kernelpair.call.layout import FAR_VECTOR, TABLE
from kernelpair.call.values import permutation, poison_value
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.scenarios.metadata_replay import Step, carry_out, fields_of, form_faults
from properties.shared.strategies import (
    CROWD,
    CROWDS,
    any_of,
    around,
    between,
    common,
    crowded,
    either,
    near,
    together,
)

ONE_QUERY_MODES = ("decode", "idle", "draft_decode")
STATIC_MODES = (*ONE_QUERY_MODES, "target_verify")
EXTEND_MODES = ("extend", "mixed", "draft_extend")
MODES_OF_A_REPLAY = (*((mode,) for mode in STATIC_MODES), STATIC_MODES)  # one mode over and over, or all in turn
PAGES = (1, 2, 3, 16, 49)  # a product with the reciprocal of 49 is too small
VAST = (2**30, 2**31, 2**32, 2**33)  # pages whose slots or numbers of tokens are beyond int32; a request has one at most
MOST_PAGES = 4  # of one request, give or take a token
MOST_REQUESTS = 4
MOST_REPLAYED = 3  # requests of a step; a sequence of steps matters more than their size
MOST_STEPS = 5
MANY_PAGES = 70_000  # of one request in one case of 24, or rows of the table: more than 16 bits count
# Scalar counts: mostly a few, for those matter together with all else; rarely more than any table of cases has places for.
DRAFTS = (0, 1, 2, 5, 0, 1, 2, 5, 0, 1, 2, 5, 16, 64)
STEP_IDS = (0, 1, 2, 0, 1, 2, 0, 1, 2, 5, 20)
DRAFT_STEPS = (0, 0, 0, 0, 1, 1, 3, 3, 7)
MOST_ROWS = 9  # of the request table: more than any batch has requests

INDICES = ("seq_lens", "req_pool_indices", "req_to_token", "extend_seq_lens", "encoder_lens")
LAYOUTS = dict.fromkeys(INDICES, FAR_VECTOR) | {"req_to_token": TABLE}


@dataclass(frozen=True, kw_only=True)
class MetadataRequest:
    """seq_lens, the new tokens among them, encoder_lens, and the row of the request table."""

    total: int = 1
    new: int = 1
    encoder: int = 0
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class MetadataStep:
    """One step. pads: bs of a replay beyond its live requests."""

    mode: str = "decode"
    requests: tuple[MetadataRequest, ...] = ()
    encoder: bool = False
    pads: int = 0


@dataclass(frozen=True, kw_only=True)
class MetadataCase(Case):
    """One batch for the eager builder, or several to replay in static buffers."""

    page_size: int = 1
    num_draft_tokens: int = 0
    speculative_step_id: int = 0
    chunk_pages: int = 0
    """attn_chunk_size in pages; 0: no local metadata."""
    rows: int = 1
    spare: int = 0
    """Table columns, and room in static buffers, beyond what is needed."""
    high: bool = False
    """Page ids up to the largest possible."""
    static: bool = False
    draft_steps: int = 0
    """Builders of a MultiStepMetadata; 0: one MetadataBuffers."""
    capture: str = "first"
    """first: all before the first replay; late: at the first use; again: before every replay."""
    batches: tuple[MetadataStep, ...] = (MetadataStep(),)

    @property
    def chunk(self) -> int | None:
        return self.chunk_pages * self.page_size or None

    @property
    def requests(self) -> list[MetadataRequest]:
        return [request for batch in self.batches for request in batch.requests]


# --- cases ---


@cache
def _lengths(page_size: int) -> st.SearchStrategy[int]:
    """Around multiples of the page size twice as often as any others."""
    near = around(*(n * page_size for n in range(MOST_PAGES + 1)))
    return st.sampled_from((*range(2), *near, *near, *range(MOST_PAGES * page_size)))


@cache
def _requests(page_size: int, rows: int, encoder: bool, most: int) -> st.SearchStrategy[tuple[MetadataRequest, ...]]:
    lengths = _lengths(page_size)
    request = st.builds(
        lambda total, new, encoder, row: MetadataRequest(total=total, new=min(total, new), encoder=encoder, row=row),
        lengths,
        lengths,
        lengths if encoder else st.just(0),
        st.integers(0, rows - 1),
    )
    return st.lists(request, max_size=most).map(tuple)


@cache
def _eager_batch(page_size: int, rows: int, encoder: bool) -> st.SearchStrategy[tuple[MetadataStep, ...]]:
    requests = _requests(page_size, rows, encoder, MOST_REQUESTS)
    modes = st.sampled_from(STATIC_MODES + EXTEND_MODES)
    return st.builds(lambda mode, requests: (MetadataStep(mode=mode, requests=requests, encoder=encoder),), modes, requests)


@cache
def _replays(
    modes: tuple[str, ...], page_size: int, rows: int, encoders: bool, bs: int
) -> st.SearchStrategy[tuple[MetadataStep, ...]]:
    """Steps of a few modes; at one bs, or (bs 0) each at its own. Those that have encoders also leave them out."""

    def step(mode: str, requests: tuple[MetadataRequest, ...], encoder: bool, pads: int) -> MetadataStep:
        if not encoder:
            requests = tuple(replace(request, encoder=0) for request in requests)
        return MetadataStep(mode=mode, requests=requests, encoder=encoder, pads=max(bs - len(requests), 0) if bs else pads)

    requests = _requests(page_size, rows, encoders, bs or MOST_REPLAYED)
    with_encoder = st.sampled_from((True, True, True, False)) if encoders else st.just(False)
    steps = st.builds(step, st.sampled_from(modes), requests, with_encoder, st.just(0) if bs else st.integers(0, 2))
    return st.lists(steps, min_size=1, max_size=MOST_STEPS).map(tuple)


FIELDS = together(
    {
        **common(LAYOUTS, INDICES),
        "page_size": st.sampled_from(PAGES),
        "num_draft_tokens": st.sampled_from(DRAFTS),
        "speculative_step_id": st.sampled_from(STEP_IDS),
        "chunk_pages": st.sampled_from((0, 0, 1, 2, 4)),
        "rows": st.integers(1, MOST_ROWS),
        "spare": st.sampled_from((0, 0, 1, 5)),
        "high": st.booleans(),
    }
)


@st.composite
def strategy(draw: st.DrawFn) -> MetadataCase:
    """Eager batches in every mode; sequences of replays in the static modes, or in the steps of a draft."""
    fields = draw(FIELDS)
    vast = draw(between(0, 23), label="vast") - 20  # which of VAST, from 0 on
    if vast >= 0:
        fields |= {"page_size": VAST[vast], "high": True, "int32": tuple(n for n in fields["int32"] if n != "req_to_token")}
        return MetadataCase(**fields, batches=draw(_eager_batch(PAGES[-1], fields["rows"], False), label="batch"))
    static = draw(either, label="static")
    if crowded(fields, 128):
        crowd = draw(CROWDS, label="crowd")
        mode = draw(any_of(*STATIC_MODES if static else (*STATIC_MODES, *EXTEND_MODES)), label="mode")
        requests = tuple(MetadataRequest(total=1 + b % 5, new=1 + b % 2 * (b % 5), row=crowd - 1 - b) for b in range(crowd))
        step = MetadataStep(mode=mode, requests=requests)
        return MetadataCase(**fields | {"rows": crowd}, static=static, batches=(step,))
    if fields["seed"] % 24 == 5:
        total = draw(any_of(3, *(MANY_PAGES,) * 3), label="pages")
        encoder, rows = total * (fields["seed"] // 24 % 3 > 0), min(fields["rows"], 2)
        requests = (MetadataRequest(), MetadataRequest(total=total, new=min(total, 2), encoder=encoder, row=rows - 1))
        step = MetadataStep(mode=draw(any_of(*STATIC_MODES), label="mode"), requests=requests, encoder=encoder > 0)
        fields |= near(fields) | {"page_size": 1, "chunk_pages": 0, "rows": rows}
        return MetadataCase(**fields, static=static, batches=(step,))
    if fields["seed"] % 96 == 54:
        rows = draw(any_of(2, *(MANY_PAGES,) * 3), label="rows")
        requests = (MetadataRequest(total=2, row=rows - 1), MetadataRequest(row=rows // 2))
        step = MetadataStep(mode=draw(any_of(*STATIC_MODES), label="mode"), requests=requests)
        fields |= near(fields) | {"page_size": 1, "chunk_pages": 0, "rows": rows}
        return MetadataCase(**fields, static=static, batches=(step,))
    page_size, rows, encoder = fields["page_size"], fields["rows"], draw(either, label="encoder")
    if not static:
        return MetadataCase(**fields, batches=draw(_eager_batch(page_size, rows, encoder), label="batch"))
    draft_steps = draw(any_of(*DRAFT_STEPS), label="draft steps")
    modes = ("draft_decode",) if draft_steps else draw(any_of(*MODES_OF_A_REPLAY), label="modes")
    return MetadataCase(
        **fields,
        static=True,
        draft_steps=draft_steps,
        capture=draw(any_of("first", "late", "again")),
        batches=draw(_replays(modes, page_size, rows, encoder, draw(between(0, 3), label="bs")), label="steps"),
    )


# --- inputs ---


def pages_of(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def keys_of(case: MetadataCase, batch: MetadataStep, request: MetadataRequest) -> int:
    """cache_seqlens of a request, the longest of all draft steps."""
    if batch.mode == "draft_decode":
        return request.total + (case.draft_steps or case.speculative_step_id + 1)
    return request.total + (case.num_draft_tokens if batch.mode == "target_verify" else 0)


def queries_of(case: MetadataCase, batch: MetadataStep, request: MetadataRequest) -> int:
    if batch.mode in EXTEND_MODES:
        return request.new
    return case.num_draft_tokens if batch.mode == "target_verify" else 1


def base_of(case: MetadataCase, request: MetadataRequest) -> int:
    """Where a request's own tokens begin in its row: behind the encoder's last page."""
    return pages_of(request.encoder, case.page_size) * case.page_size


def _table(case: MetadataCase) -> Tensor:
    """Consecutive slots of pages in any order where the contract looks, poison elsewhere."""
    page = case.page_size
    ends = [base_of(case, r) + keys_of(case, batch, r) for batch in case.batches for r in batch.requests]
    C = max(ends, default=0) + case.spare
    columns = pages_of(C, page)
    ids = permutation(case.seed, "pages", case.rows * columns).reshape(case.rows, columns)
    if case.high:
        ids = min(2**31, (2**31 if "req_to_token" in case.int32 else 2**63) // page) - 1 - ids
    slots = (ids[:, :, None] * page + torch.arange(min(page, C))).flatten(1)[:, :C]
    used = torch.zeros(case.rows, C, dtype=torch.bool)
    for batch in case.batches:
        for request in batch.requests:
            base = base_of(case, request)
            used[request.row, : request.encoder] = True
            used[request.row, base : base + keys_of(case, batch, request)] = True
    return torch.where(used, slots, int(poison_value(case.poison, torch.int64)))


DEFAULTS: Inputs = {"page_size": 1, "num_draft_tokens": 0, "speculative_step_id": 0, "attn_chunk_size": None}
"""Of a batch's arguments: half of the calls leave out those that are so."""


def inputs(case: MetadataCase) -> Inputs:
    """The requests of all steps one after another, and how they are cut into steps."""
    extend = [r.new for batch in case.batches for r in batch.requests if batch.mode in EXTEND_MODES]
    extending = any(batch.mode in EXTEND_MODES for batch in case.batches)
    steps = tuple((b.mode, len(b.requests), len(b.requests) + b.pads, b.encoder) for b in case.batches)
    given: Inputs = {
        "steps": steps,
        "seq_lens": torch.tensor([r.total for r in case.requests], dtype=torch.int64),
        "req_pool_indices": torch.tensor([r.row for r in case.requests], dtype=torch.int64),
        "req_to_token": _table(case),
        "extend_seq_lens": torch.tensor(extend, dtype=torch.int64) if extending else None,
        "encoder_lens": torch.tensor([r.encoder for r in case.requests], dtype=torch.int64)
        if any(batch.encoder for batch in case.batches)
        else None,
        "page_size": case.page_size,
        "num_draft_tokens": case.num_draft_tokens,
        "speculative_step_id": case.speculative_step_id,
        "attn_chunk_size": case.chunk,
        "static": static_of(case) if case.static else None,
    }
    left_out = DEFAULTS if case.seed % 2 and not case.static else {}
    return {name: value for name, value in given.items() if name not in left_out or value != left_out[name]}


def static_of(case: MetadataCase) -> dict[str, Any]:
    """Limits that the steps need, and no more than `spare` beyond."""
    keys = [keys_of(case, batch, request) for batch in case.batches for request in batch.requests]
    encoders = [request.encoder for request in case.requests]
    return {
        "max_bs": max(len(batch.requests) + batch.pads for batch in case.batches) + case.spare,
        "max_context_len": max(keys, default=0) + case.spare,
        "max_encoder_len": max([1, *encoders]) + case.spare if any(batch.encoder for batch in case.batches) else 0,
        "draft_steps": case.draft_steps,
        "topk": 1,
        "capture": case.capture,
    }


# --- what is called ---


def _call(
    module: ModuleType, steps: tuple[Step, ...], static: Mapping[str, Any] | None, given: Inputs, checked: bool
) -> dict[str, Any]:
    if static is not None:
        return carry_out(module, steps, static, DEFAULTS | given, checked)
    meta = module.build_attention_metadata(steps[0][0], **given)
    return {**fields_of(meta), "faults": form_faults(meta) if checked else []}


def optimized_metadata(*, steps: tuple[Step, ...], static: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """Every field of the metadata by name, and `faults`: what no comparison of values sees."""
    return _call(optimized.attention_metadata, steps, static, given, checked=True)


def reference_metadata(*, steps: tuple[Step, ...], static: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """The same of the reference, taken to be without faults."""
    return _call(reference.attention_metadata, steps, static, given, checked=False)


# --- edges ---


def _replayed(case: MetadataCase) -> list[MetadataStep]:
    return list(case.batches) if case.static else []


def _long_short_long(case: MetadataCase) -> bool:
    """Replays of one buffer whose longest request shrinks and grows again."""
    longest: dict[tuple[str, int], list[int]] = {}
    for batch in _replayed(case):
        most = max((request.total for request in batch.requests), default=0)
        longest.setdefault((batch.mode, len(batch.requests) + batch.pads), []).append(most)
    return any(a > b < c for several in longest.values() for a, b, c in zip(several, several[1:], several[2:]))


EDGES = {
    "no requests": lambda case: not case.static and not case.requests,
    "no live requests in a replay": lambda case: any(not b.requests and b.pads for b in _replayed(case)),
    "bs 0": lambda case: any(not b.requests and not b.pads for b in _replayed(case)),
    "a crowd of requests": lambda case: len(case.requests) == CROWD,
    "more pages than 16 bits count": lambda case: any(r.total == MANY_PAGES for r in case.requests),
    "three requests": lambda case: any(len(b.requests) == 3 for b in case.batches),
    "bs = max_bs": lambda case: case.static and case.spare == 0,
    "length 0": lambda case: any(r.total == 0 for r in case.requests),
    "a whole number of pages": lambda case: any(
        r.total > 0 and r.total % case.page_size == 0 and case.page_size > 1 for r in case.requests
    ),
    "one token more than pages": lambda case: any(
        r.total > case.page_size > 1 == r.total % case.page_size for r in case.requests
    ),
    "distinct encoder lengths, one of them 0": lambda case: any(
        b.encoder and len({r.encoder for r in b.requests}) > 1 and any(r.encoder == 0 for r in b.requests) for b in case.batches
    ),
    "encoder ends inside a page": lambda case: any(r.encoder % case.page_size for r in case.requests),
    "no new tokens": lambda case: any(b.mode in EXTEND_MODES and r.new == 0 for b in case.batches for r in b.requests),
    "all tokens new": lambda case: any(
        b.mode in EXTEND_MODES and r.new == r.total > 0 for b in case.batches for r in b.requests
    ),
    "requests share a row": lambda case: any(len({r.row for r in b.requests}) < len(b.requests) for b in case.batches),
    "row beyond max_bs": lambda case: any(r.row > static_of(case)["max_bs"] for b in _replayed(case) for r in b.requests),
    "long, short, long": _long_short_long,
    "bs grows and shrinks": lambda case: len({len(b.requests) + b.pads for b in _replayed(case)}) > 1,
    "modes of equal bs": lambda case: any(
        a.mode != b.mode and len(a.requests) + a.pads == len(b.requests) + b.pads
        for a in _replayed(case)
        for b in _replayed(case)
    ),
    "replay with and without encoder": lambda case: len({b.encoder for b in _replayed(case)}) > 1,
    "several draft steps": lambda case: case.draft_steps > 1,
    "many draft steps": lambda case: case.draft_steps > 4 and bool(case.requests),
    "a late draft step": lambda case: case.speculative_step_id > 4
    and any(b.mode == "draft_decode" and b.requests for b in case.batches),
    "many draft tokens": lambda case: case.num_draft_tokens > 8
    and any(b.mode == "target_verify" and b.requests for b in case.batches),
    "local metadata": lambda case: case.chunk_pages > 0 and not case.static,
    "static local metadata": lambda case: case.chunk_pages > 0 and case.static,
    "vast pages": lambda case: case.page_size in VAST and any(r.total for r in case.requests),
    "highest page ids": lambda case: case.high and bool(case.requests),
    **{f"page {page}": lambda case, page=page: case.page_size == page for page in PAGES},  # type: ignore[misc]
    **{
        f"mode {mode}": lambda case, mode=mode: not case.static and case.batches[0].mode == mode  # type: ignore[misc]
        for mode in STATIC_MODES + EXTEND_MODES
    },
    **{
        f"replayed {mode}": lambda case, mode=mode: any(b.mode == mode for b in _replayed(case))  # type: ignore[misc]
        for mode in STATIC_MODES
    },
}
