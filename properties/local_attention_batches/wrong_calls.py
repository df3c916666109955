"""local_attention_batches: calls that both sides refuse."""

from collections.abc import Callable

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.local_attention_batches.cases import HUGE, INDICES, MOST_PAGE_ID, LocalCase, start_of, used_pages
from properties.shared.wrong_calls import Pick, any_of, beyond_32_bits, changing, entry, falling, made, moved_to, setting


def _negative(at: int) -> Pick:
    """An entry of a batch that has requests."""
    return lambda case, given: (at, -1) if case.requests else None


def _beyond_the_table(case: LocalCase, given: Inputs) -> tuple[int, int] | None:
    """More keys than the first request's row has places for."""
    if not case.requests:
        return None
    length = given["block_table"].shape[1] * case.page_size + 1 + case.requests[0][0]
    return (0, length) if length <= (MOST_PAGE_ID if "seq_lens" in case.int32 else 2**63 - 1) else None


def _too_many_new(case: LocalCase, given: Inputs) -> Inputs | None:
    b = next((b for b, (_, k) in enumerate(case.requests) if k), None)
    if b is None:
        return None
    wrong = given["query_start_loc"].clone()
    wrong[b + 1 :] += case.requests[b][1] - case.requests[b][0] + 1
    return given | {"query_start_loc": wrong}


def _page_id(value: int, more: int = 0) -> Callable[[LocalCase, Inputs], Inputs | None]:
    """A used entry of some request becomes `value`, or so much more than it is."""

    def make(case: LocalCase, given: Inputs) -> Inputs | None:
        used = [(b, page) for b in range(len(case.requests)) for page in used_pages(case, b)]
        if not used or (value + more > MOST_PAGE_ID and "block_table" in case.int32):
            return None
        wrong, place = given["block_table"].clone(), any_of(case, used)
        wrong[place] = wrong[place] + more if more else value
        return given | {"block_table": wrong}

    return make


def _chunk_too_long(case: LocalCase, given: Inputs) -> Inputs:
    """One page of 2^31 tokens, all of them cached but one."""
    return {
        "attn_chunk_size": 2**31,
        "query_start_loc": torch.tensor([0, 1]),
        "seq_lens": torch.tensor([2**31]),
        "block_table": torch.zeros(1, 1, dtype=torch.int64),
        "page_size": 2**31,
    }


def _too_many_in_all(case: LocalCase, given: Inputs) -> Inputs:
    """Two requests of 2^30 new tokens each, of one page each."""
    return {
        "attn_chunk_size": 2**30,
        "query_start_loc": torch.tensor([0, 2**30, 2**31]),
        "seq_lens": torch.tensor([2**30, 2**30]),
        "block_table": torch.zeros(2, 1, dtype=torch.int64),
        "page_size": 2**30,
    }


def _fall_between(case: LocalCase, given: Inputs) -> Inputs:
    """Three or more requests of a page each, of a few new tokens; an offset that is neither the first nor the last one falls,
    to no less than the first."""
    count, page, start = 3 + case.seed % 3, 16, start_of(case)
    offsets = start + 3 * torch.arange(count + 1)
    offsets[any_of(case, range(2, count))] -= 4 + case.seed // 2 % 2
    return {
        "attn_chunk_size": page,
        "query_start_loc": offsets,
        "seq_lens": torch.full((count,), page),
        "block_table": torch.arange(count)[:, None],
        "page_size": page,
    }


_LENGTHS = ("query_start_loc", "seq_lens")
WRONG_CALLS = {
    "chunk_zero": WrongCall(setting(attn_chunk_size=0), ValueError, "attn_chunk_size"),
    "chunk_negative": WrongCall(setting(attn_chunk_size=-16), ValueError, "attn_chunk_size"),
    "chunk_float": WrongCall(setting(attn_chunk_size=4.0), TypeError, "attn_chunk_size"),
    "page_zero": WrongCall(setting(page_size=0), ValueError, "page_size"),
    "page_none": WrongCall(setting(page_size=None), TypeError, "page_size"),
    "chunk_no_multiple": made(
        lambda case, given: given | {"attn_chunk_size": case.page_size + 1}, ValueError, "attn_chunk_size", "page_size",
        when=lambda case: 1 < case.page_size < 2**20,
    ),
    "more_new_than_total": WrongCall(_too_many_new, ValueError, _LENGTHS),
    "length_negative": entry("seq_lens", _negative(-1), ValueError),
    "offset_negative": moved_to("query_start_loc", 0, lambda given: -1),
    "offset_falls": falling("query_start_loc", "seq_lens"),
    "offset_falls_between": WrongCall(_fall_between, ValueError, _LENGTHS),
    "last_offset_negative": entry("query_start_loc", _negative(-1), ValueError),
    "length_beyond_table": entry("seq_lens", _beyond_the_table, IndexError),
    "chunk_beyond_int32": WrongCall(_chunk_too_long, ValueError, "seq_lens"),
    "total_beyond_int32": made(
        _too_many_in_all, ValueError, "query_start_loc", when=lambda case: "query_start_loc" not in case.int32
    ),
    "page_id_negative": WrongCall(_page_id(-1), IndexError, "block_table"),
    "page_id_beyond_int32": WrongCall(_page_id(MOST_PAGE_ID + 1), IndexError, "block_table"),
    "page_id_beyond_32_bits": WrongCall(_page_id(0, 2**32), IndexError, "block_table"),
    "table_rank": WrongCall(changing("block_table", lambda t: t[None]), ValueError, "block_table"),
    "table_rows": WrongCall(changing("block_table", lambda t: t.new_zeros(len(t) + 1, t.shape[1])), ValueError, INDICES),
    "table_none": WrongCall(setting(block_table=None), TypeError, "block_table"),
    "lengths_size": WrongCall(changing("seq_lens", lambda t: t.new_zeros(len(t) + 1)), ValueError, INDICES),
    "offsets_size": WrongCall(changing("query_start_loc", lambda t: t[1:]), ValueError, INDICES),
    **{
        f"{name}_float": WrongCall(changing(name, lambda t: t.float()), TypeError, name) for name in INDICES
    },
    **{
        f"{name}_uint8": WrongCall(changing(name, lambda t: t.to(torch.uint8)), TypeError, name) for name in INDICES
    },
    "seq_lens_beyond_32_bits": beyond_32_bits(
        "seq_lens", IndexError, when=lambda case: case.page_size < HUGE["page_size"] and case.chunk <= MOST_PAGE_ID
    ),  # of so long a request a longer chunk would not fit int32
}
