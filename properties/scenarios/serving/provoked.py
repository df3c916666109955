"""What backends must refuse in passing, without a trace: wrong batches between the preparation of another and its layers, and
wrong replays of recorded graphs between two right ones. And what they must not refuse yet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.scenarios.serving.cases import ROWS, STATES, ServingCase, bare, longest, max_bs, page_of, slots_of
from serving import DECODE_MODES, ForwardBatch


def at_limits(case: ServingCase, backend: Any, mode: str, table: Tensor) -> None:
    """Have an attention backend accept the longest batches that there may be, which reach the last column of the table, and of
    replays the last ones of static buffers."""
    held = table[0].clone()
    table[0] = torch.arange(len(held), dtype=table.dtype)
    row = torch.tensor([0])
    new = torch.tensor([1]) if mode == "extend" else None
    try:
        backend.prepare(ForwardBatch(mode, row, torch.tensor([len(held)]), torch.tensor([slots_of(case) - 1]), new))
        if mode == "decode" and not bare(case):
            backend.prepare(ForwardBatch(mode, row, torch.tensor([longest(case)]), row, padded_size=max_bs(case)))
    finally:
        table[0] = held


def replays_nothing(backend: Any, batch: ForwardBatch) -> None:
    """Have a backend that was told no sizes of static buffers refuse to replay a batch of decodes."""
    if batch.size and batch.mode in DECODE_MODES:
        _refused((ValueError,), backend.prepare, replace(batch, padded_size=batch.rows))


def between(case: ServingCase, backend: Any, batch: ForwardBatch, table: Tensor, pages: bool) -> None:
    """Have an attention backend that has prepared `batch` refuse others; `pages`: it reads pages."""
    other = another(batch)
    for wrong in _wrong_batches(case, other, pages):
        _refused((ValueError, IndexError), backend.prepare, wrong)
    goes_on = batch.mode == "draft_decode" and batch.speculative_step_id > 0 and batch.padded_size is not None
    if pages and page_of(case) > 1 and batch.size and not goes_on:  # a draft that goes on reads no table
        place = int(other.req_pool_indices[0]), 0
        held = table[place].clone()
        table[place] += 1  # a slot, but it starts no page
        try:
            _refused((ValueError, IndexError), backend.prepare, replace(other, out_cache_loc=None))
        finally:
            table[place] = held


def between_recurrent(backend: Any, batch: ForwardBatch) -> None:
    """The same of a backend of recurrent layers."""
    other = another(batch)
    if batch.size:
        assert other.state_indices is not None
        slots = other.state_indices.clone()
        slots[-1] = STATES
        _refused((IndexError,), backend.prepare, replace(other, state_indices=slots))


def behind(recorded: Any, given: Mapping[int, Sequence[Tensor | None]], batch: ForwardBatch) -> None:
    """Have a recorder that has replayed a graph refuse what it must not run it on, another draft's first step for example."""
    other = another(batch)
    if other.mode == "draft_decode":
        other = replace(other, speculative_step_id=0)
    last, values = [*given.items()][-1]
    place = max(i for i, value in enumerate(values) if value is not None)  # what lies before it is right
    for spoil in (_of_another_dtype, _narrower):
        wrong = [spoil(value) if i == place and value is not None else value for i, value in enumerate(values)]
        _refused((ValueError,), recorded.decode, {**given, last: wrong}, other)
    if batch.size:
        assert other.out_cache_loc is not None
        _refused((ValueError,), recorded.decode, given, replace(other, out_cache_loc=other.out_cache_loc[1:]))
    _refused((ValueError,), recorded.decode, given, replace(other, padded_size=None))


def _of_another_dtype(rows: Tensor) -> Tensor:
    return rows.to(torch.float16 if rows.dtype == torch.float32 else torch.float32)


def _narrower(rows: Tensor) -> Tensor:
    return rows[..., 1:]


def another(batch: ForwardBatch) -> ForwardBatch:
    """A batch of the same mode and size that differs in all else: other rows, one token each, no encoders."""
    shorter = 0 if batch.mode in ("draft_decode", "target_verify") else 1
    flipped: dict[str, Any] = {name: value.flip(0) for name in ("req_pool_indices", "out_cache_loc", "state_indices")
               if (value := getattr(batch, name)) is not None}  # fmt: skip
    lengths: dict[str, Any] = {name: torch.full_like(value, length) for name, length in (
        ("seq_lens", shorter), ("extend_seq_lens", 1), ("encoder_lens", 0)
    ) if (value := getattr(batch, name)) is not None}  # fmt: skip
    return replace(batch, encoder_out_cache_loc=None, **flipped, **lengths)


def _wrong_batches(case: ServingCase, other: ForwardBatch, pages: bool) -> Iterator[ForwardBatch]:
    if other.size:
        yield from _wrong_of_one(other, case.seed % other.size)
    if other.out_cache_loc is not None and len(other.out_cache_loc):
        outside = other.out_cache_loc.clone()
        outside[-1] = slots_of(case)
        yield replace(other, out_cache_loc=outside)
    if other.padded_size is None:
        return
    yield replace(other, padded_size=max_bs(case) + 1)
    if pages and other.mode == "target_verify":
        yield replace(other, num_draft_tokens=case.drafts + 1)
    if pages and other.mode == "draft_decode":
        yield replace(other, speculative_step_id=max(case.drafts - 1, 0))


def _wrong_of_one(other: ForwardBatch, b: int) -> Iterator[ForwardBatch]:
    """One request, wherever it stands, has a row that the table lacks, its own as it is counted from the end, or more tokens than
    the table has columns."""
    row = int(other.req_pool_indices[b])
    for name, value in (("req_pool_indices", ROWS), ("req_pool_indices", row - ROWS), ("seq_lens", 2**20)):
        changed: dict[str, Any] = {name: getattr(other, name).to(torch.int32, copy=True)}
        changed[name][b] = value
        yield replace(other, **changed)


def _refused(errors: tuple[type[Exception], ...], call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except errors:
        return
    raise AssertionError(f"{call.__qualname__} has not refused {arguments[-1]}")
