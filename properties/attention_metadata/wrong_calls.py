"""attention_metadata: calls that both sides refuse."""

from collections.abc import Callable
from typing import Any

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.attention_metadata.cases import (
    EXTEND_MODES,
    INDICES,
    STATIC_MODES,
    VAST,
    MetadataCase,
    base_of,
    keys_of,
    static_of,
)
from properties.shared.wrong_calls import Make, any_of, changed, made, one_entry, setting


def _eager(case: MetadataCase) -> bool:
    return not case.static


def _one(name: str, value: Callable[[Inputs, int], int]) -> Make:
    """A wrong entry of an eager call's argument, of any request."""

    def pick(case: MetadataCase, given: Inputs) -> tuple[int, int] | None:
        if case.static or not case.requests:
            return None
        request = any_of(case, range(len(case.requests)))
        return request, value(given, request)

    return one_entry(name, pick)


def _mode(mode: object) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """Another mode for every step; the steps of a draft name none."""
    return lambda case, given: (
        None if case.draft_steps else given | {"steps": tuple((mode, *step[1:]) for step in given["steps"])}
    )


def _slot(slot: Callable[[int, int], int], least: int) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """The last page start of any request is wrong; `least` is the page size from which that can be."""

    def make(case: MetadataCase, given: Inputs) -> Inputs | None:
        keys = [keys_of(case, case.batches[0], r) for r in case.batches[0].requests]
        found = [b for b, length in enumerate(keys) if length]
        if case.static or not found or case.page_size < least:
            return None
        b, page = any_of(case, found), case.page_size
        request, wrong = case.requests[b], given["req_to_token"].clone()
        at = base_of(case, request) + (keys[b] - 1) // page * page
        value = slot(int(wrong[request.row, at]), page)
        if value >= (2**31 if "req_to_token" in case.int32 else 2**63):
            return None
        wrong[request.row, at] = value
        return given | {"req_to_token": wrong}

    return make


def _no_extend(case: MetadataCase, given: Inputs) -> Inputs | None:
    return None if case.static or case.batches[0].mode not in EXTEND_MODES else given | {"extend_seq_lens": None}


def _table_dtype(case: MetadataCase) -> torch.dtype:
    """That of the case: cast, a table of stride 0 would have all of its entries."""
    return torch.int32 if "req_to_token" in case.int32 else torch.int64


def _too_many(name: str) -> Callable[[MetadataCase, Inputs], Inputs]:
    """Two requests of 2^30 tokens each, their own or the encoder's, in a table of one entry and stride 0."""

    def make(case: MetadataCase, given: Inputs) -> Inputs:
        dtype = _table_dtype(case)
        lengths = {"seq_lens": torch.tensor([0, 0]), "encoder_lens": None, name: torch.tensor([2**30, 2**30])}
        return given | lengths | {
            "steps": (("decode", 2, 2, name == "encoder_lens"),),
            "req_pool_indices": torch.tensor([0, 0]),
            "req_to_token": torch.zeros(1, 1, dtype=dtype).expand(1, 2**30),
            "extend_seq_lens": None,
            "page_size": 2**30,
            "attn_chunk_size": None,
            "static": None,
        }

    return make


def _no_place_behind(case: MetadataCase, given: Inputs) -> Inputs | None:
    """An encoder's tokens fill a row that ends inside a page. The request has none of its own, but they would begin beyond."""
    columns = case.page_size + 1
    return None if case.page_size == 1 or case.page_size in VAST else given | {
        "steps": (("decode", 1, 1, True),),
        "seq_lens": torch.tensor([0]),
        "req_pool_indices": torch.tensor([0]),
        "req_to_token": (torch.arange(columns) // case.page_size * case.page_size)[None],
        "extend_seq_lens": None,
        "encoder_lens": torch.tensor([columns]),
        "static": None,
    }


def _no_place_for_a_shorter_one(case: MetadataCase, given: Inputs) -> Inputs | None:
    """An encoder's tokens fill the row of a request that is shorter than the one before it, which has room."""
    columns = 2 * case.page_size
    return None if case.page_size in VAST else given | {
        "steps": (("decode", 2, 2, True),),
        "seq_lens": torch.tensor([2, 1]),
        "req_pool_indices": torch.tensor([0, 0]),
        "req_to_token": torch.arange(columns)[None],
        "extend_seq_lens": None,
        "encoder_lens": torch.tensor([0, columns]),
        "static": None,
    }


def _static(
    change: Callable[[Inputs, dict[str, Any]], object], needs: Callable[[MetadataCase], bool] = lambda case: True
) -> Callable[[MetadataCase, Inputs], Inputs | None]:
    """A replay of one batch in buffers that do not fit; `change` edits the limits and may return other arguments."""

    def make(case: MetadataCase, given: Inputs) -> Inputs | None:
        mode, live, _, encoder = given["steps"][0]
        if case.static or mode not in STATIC_MODES or not live or not needs(case):
            return None
        limits = static_of(case)
        wrong = change(given, limits)
        steps = {"steps": ((mode, live, live, encoder),), "static": limits}
        return given | steps | (wrong if isinstance(wrong, dict) else {})

    return make


def _has_encoder(case: MetadataCase) -> bool:
    return case.batches[0].encoder and max(r.encoder for r in case.requests) > 0


def _no_encoder_tokens(given: Inputs, limits: dict[str, Any]) -> dict[str, Any]:
    """Lengths of 0, none of which is too long for buffers without an encoder's."""
    limits.update(max_encoder_len=0)
    return {"encoder_lens": torch.zeros_like(given["encoder_lens"])}


def _bs_one_less(given: Inputs, limits: dict[str, Any]) -> dict[str, Any]:
    mode, live, _, encoder = given["steps"][0]
    return {"steps": ((mode, live, live - 1, encoder),)}


def _context_too_long(case: MetadataCase, given: Inputs) -> Inputs | None:
    """The longest request has one key more than there is room for."""
    longest = max((keys_of(case, case.batches[0], r) for r in case.batches[0].requests), default=0)
    return _static(lambda given, limits: limits.update(max_context_len=longest - 1), lambda case: longest > 0)(case, given)


def _behind_the_encoder(given: Inputs, b: int) -> int:
    """An encoder's length that leaves the row one place less than the request's own tokens need."""
    return _columns(given) + 1 - int(given["seq_lens"][b])


def _columns(given: Inputs) -> int:
    return int(given["req_to_token"].shape[1])


def _long_beyond_32_bits(case: MetadataCase, given: Inputs) -> Inputs | None:
    """One request has 2^32 tokens more, and a table of one entry and stride 0 has places for all of them."""
    wrong = _one("seq_lens", lambda given, b: int(given["seq_lens"][b]) + 2**32)(case, given)
    dtype, (rows, columns) = _table_dtype(case), given["req_to_token"].shape
    return wrong and wrong | {"req_to_token": torch.zeros(1, 1, dtype=dtype).expand(rows, 2**32 + 2 * columns + 1)}


_TABLE = ("seq_lens", "encoder_lens", "req_to_token")
NO_CAPTURE = ("capture", "captured", "mode", "bs")  # no argument is wrong by itself
OF_ENCODER = ("encoder_lens", "max_encoder_len")
LENGTHS = ("req_pool_indices", "extend_seq_lens", "encoder_lens")
WRONG_CALLS = {
    "mode_unknown": WrongCall(_mode("prefill"), ValueError, "mode"),
    "mode_none": WrongCall(_mode(None), TypeError, "mode"),
    "page_zero": WrongCall(setting(page_size=0), ValueError, "page_size"),
    "page_beyond": WrongCall(setting(page_size=2**62 + 1), ValueError, "page_size"),
    "page_float": WrongCall(setting(page_size=1.0), TypeError, "page_size"),
    "drafts_negative": WrongCall(setting(num_draft_tokens=-1), ValueError, "num_draft_tokens"),
    "step_negative": WrongCall(
        lambda case, given: None if case.draft_steps else given | {"speculative_step_id": -1}, ValueError, "speculative_step_id"
    ),
    "chunk_zero": WrongCall(setting(attn_chunk_size=0), ValueError, "attn_chunk_size"),
    "chunk_no_multiple": made(
        lambda case, given: given | {"attn_chunk_size": case.page_size + 1}, ValueError, "attn_chunk_size", "page_size",
        when=lambda case: case.page_size > 1,
    ),
    "extend_missing": WrongCall(_no_extend, ValueError, "extend_seq_lens"),
    "extend_more_than_total": WrongCall(
        _one("extend_seq_lens", lambda given, b: int(given["seq_lens"][b]) + 1), ValueError, ("extend_seq_lens", "seq_lens")
    ),
    "extend_negative": WrongCall(_one("extend_seq_lens", lambda given, b: -1), ValueError, "extend_seq_lens"),
    "length_negative": WrongCall(_one("seq_lens", lambda given, b: -1), ValueError, ("seq_lens", "extend_seq_lens")),
    "length_beyond_table": WrongCall(_one("seq_lens", lambda given, b: _columns(given) + 1), IndexError, "seq_lens"),
    "length_beyond_32_bits": made(
        _long_beyond_32_bits, ValueError, "seq_lens", when=lambda case: "seq_lens" not in case.int32
    ),
    "encoder_negative": WrongCall(_one("encoder_lens", lambda given, b: -1), ValueError, "encoder_lens"),
    "encoder_beyond_table": WrongCall(_one("encoder_lens", lambda given, b: _columns(given) + 1), IndexError, _TABLE),
    "encoder_leaves_too_little": WrongCall(_one("encoder_lens", _behind_the_encoder), IndexError, _TABLE),
    "encoder_leaves_a_shorter_one_too_little": WrongCall(_no_place_for_a_shorter_one, IndexError, _TABLE),
    "encoder_without_place_behind": WrongCall(_no_place_behind, IndexError, _TABLE),
    "row_negative": WrongCall(_one("req_pool_indices", lambda given, b: -1), IndexError, "req_pool_indices"),
    "row_too_large": WrongCall(
        _one("req_pool_indices", lambda given, b: len(given["req_to_token"])), IndexError, "req_pool_indices"
    ),
    "page_start": WrongCall(_slot(lambda slot, page: slot + 1 if slot + 1 < 2**31 else slot - 1, 2), ValueError, "req_to_token"),
    "slot_negative": WrongCall(_slot(lambda slot, page: -page, 1), IndexError, "req_to_token"),
    "slot_beyond_int32": WrongCall(_slot(lambda slot, page: 2**31 * page, 1), IndexError, "req_to_token"),
    "page_beyond_int32": WrongCall(_slot(lambda slot, page: 2**31 * page, 2**31), IndexError, "req_to_token"),
    "totals": WrongCall(_too_many("seq_lens"), ValueError, "seq_lens"),
    "encoder_totals": WrongCall(_too_many("encoder_lens"), ValueError, "encoder_lens"),
    "table_rank": changed("req_to_token", lambda t: t[None], ValueError, when=_eager),
    "lengths_rank": changed("seq_lens", lambda t: t[None], ValueError, *LENGTHS, when=_eager),
    "lengths_none": WrongCall(lambda case, given: None if case.static else given | {"seq_lens": None}, TypeError, "seq_lens"),
    **{
        f"{name}_size": changed(name, lambda t: t.new_zeros(len(t) + 1), ValueError, "seq_lens", when=_eager)
        for name in ("req_pool_indices", "extend_seq_lens", "encoder_lens")
    },
    **{f"{name}_float": changed(name, lambda t: t.float(), TypeError, when=_eager) for name in INDICES},
    **{f"{name}_uint8": changed(name, lambda t: t.to(torch.uint8), TypeError, when=_eager) for name in INDICES},
    "bs_beyond_max": WrongCall(
        _static(lambda given, limits: limits.update(max_bs=given["steps"][0][1] - 1)), ValueError, ("bs", "max_bs")
    ),
    "bs_below_live": WrongCall(_static(_bs_one_less), ValueError, ("bs", "seq_lens")),
    "never_captured": WrongCall(_static(lambda given, limits: limits.update(capture="never")), ValueError, NO_CAPTURE),
    "topk": WrongCall(_static(lambda given, limits: limits.update(draft_steps=2, topk=2)), ValueError, "topk"),
    "static_extend": WrongCall(
        _static(lambda given, limits: {"steps": tuple(("extend", *step[1:]) for step in given["steps"])}), ValueError, "mode"
    ),
    "context_too_long": WrongCall(_context_too_long, IndexError, ("seq_lens", "max_context_len")),
    "encoder_too_long": WrongCall(
        _static(lambda given, limits: limits.update(max_encoder_len=max(int(given["encoder_lens"].max()) - 1, 0)),
                lambda case: _has_encoder(case) and max(r.encoder for r in case.requests) > 1), IndexError, OF_ENCODER
    ),
    "encoder_without_buffers": WrongCall(
        _static(_no_encoder_tokens, _has_encoder), ValueError, OF_ENCODER
    ),
}  # fmt: skip


# --- bench ---
