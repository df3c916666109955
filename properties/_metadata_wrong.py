"""Wrong calls of attention_metadata, and the rows of its benchmark."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Bad, BenchRow, Inputs
from kernelpair.values import generator, permutation
from properties._metadata_cases import (
    EXTEND_MODES,
    INDICES,
    STATIC_MODES,
    MetadataCase,
    base_of,
    keys_of,
    static_of,
)


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


def _mode(mode: object) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """Another mode for every step; the steps of a draft name none."""
    return lambda case, given: (
        None if case.draft_steps else given | {"steps": tuple((mode, *step[1:]) for step in given["steps"])}
    )


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
    "mode_none": Bad(_mode(None), TypeError, "mode"),
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
        partial(_bench_inputs, 256, longest, page),
        peers={"torch": _in_torch},
    )
    for longest, page in ((2048, 1), (4096, 16), (4096, 64))
]
