"""gated_delta_rule_update_spec: calls that both sides refuse. Those of tokens, gates and scalars are the single step's to try."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs
from properties.gated_delta_rule_update.cases import PAD
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NO_SCALES,
    all_integers,
    any_of,
    beside_wide,
    beyond_32_bits,
    cast,
    changed,
    entry,
    grown,
    made,
    moved_to,
    no_index,
    one_rank_more,
    other_dtype,
    replaced,
    replaced_each,
    self_overlapping,
    sparse,
    unlike_pad,
)


def _column(case: Any, which: str) -> Any:
    """A column that some live request writes; or the one that a request reads, if there is one, without writing it."""
    only_read = [r for r in case.live if case.accepted[r] > case.lengths[r]]
    if which == "read":
        r = any_of(case, only_read or case.live)
        return r, case.accepted[r] - 1
    return any_of(case, [(r, column) for r in case.live for column in range(case.lengths[r])])


def _slot(which: str, value: int, past: bool = False) -> Any:
    def pick(case: Any, given: Inputs) -> Any:
        wrong = len(given["state"]) + value if past else unlike_pad(given, value)
        return (_column(case, which), wrong) if case.live else None

    return pick


def _twice_in_one(case: Any, given: Inputs) -> Any:
    """The last token's slot is also the first one's."""
    r = next((r for r in case.live if case.lengths[r] > 1), None)
    return None if r is None else ((r, case.lengths[r] - 1), int(given["state_indices"][r, 0]))


def _twice_in_two(case: Any, given: Inputs) -> Any:
    if len(case.live) < 2:
        return None
    return ((case.live[-1], case.lengths[case.live[-1]] - 1), int(given["state_indices"][case.live[0], 0]))


def _read_by_another(reader: int, writer: int) -> Any:
    """A live request reads, in a column that it does not write, the slot that another one writes: the first (0) or last (-1)."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        if len(case.live) < 2:
            return None
        r, n = case.live[reader], case.lengths[case.live[reader]]
        indices = torch.nn.functional.pad(given["state_indices"], (0, 1))  # a column that nobody writes
        accepted = given["num_accepted_tokens"].clone()
        indices[r, n], accepted[r] = indices[case.live[writer], 0], n + 1
        return given | {"state_indices": indices, "num_accepted_tokens": accepted}

    return make


def _accepted(value: int | None) -> Any:
    def pick(case: Any, given: Inputs) -> Any:
        return (any_of(case, case.live), case.columns + 1 if value is None else value) if case.live else None

    return pick


def _fewer_columns(case: Any, given: Inputs) -> Inputs | None:
    longest = max((case.lengths[r] for r in case.live), default=0)
    return given | {"state_indices": given["state_indices"][:, : longest - 1].contiguous()} if longest > 1 else None


def _pad_beyond_columns(case: Any, given: Inputs) -> Inputs | None:
    """The requests with most tokens are pads, and there are columns enough for all others alone."""
    longest = max(case.lengths, default=0)
    pads = [r for r, n in enumerate(case.lengths) if n == longest or r in case.pads]
    columns = max([1, *(max(case.lengths[r], case.accepted[r]) for r in case.live if r not in pads)])
    if longest <= columns:
        return None
    indices = given["state_indices"][:, :columns].clone()
    indices[pads, 0] = PAD
    return given | {"state_indices": indices, "pad_slot": PAD}


INDICES = "state_indices"
WRONG_CALLS = {
    "k_tokens": grown("k", 0, "q"),
    "v_tokens": grown("v", 0, "q"),
    "a_tokens": grown("a", 0),
    "b_heads": grown("b", 1),
    "state_heads": grown("state", 1),
    "state_rows": grown("state", 2),
    "layout_tag": replaced("state_layout", "kk", ValueError),
    "layout_number": replaced("state_layout", 0, TypeError),
    **replaced_each("scale", NO_SCALES),
    **replaced_each("eps", NO_SCALES),
    "k_dtype": other_dtype("k", "q"),
    "all_integers": beside_wide(all_integers("q", "k", "v", "a", "b"), "A_log", "dt_bias"),
    "state_float16": cast("state", torch.float16),
    "state_float64": cast("state", torch.float64),
    "v_none": replaced("v", None, TypeError),
    "q_strides": sparse("q"),
    "state_strides": sparse("state"),
    "state_overlaps_itself": self_overlapping("state"),
    "indices_rank": one_rank_more(INDICES),
    "indices_vector": changed(INDICES, lambda indices: indices.reshape(-1), ValueError),
    "indices_requests": grown(INDICES, 0, "query_start_loc", "num_accepted_tokens"),
    "indices_float": no_index(INDICES),
    "indices_columns": made(_fewer_columns, ValueError, INDICES, "num_accepted_tokens"),
    "indices_columns_of_a_pad": made(_pad_beyond_columns, ValueError, INDICES),
    "written_negative": entry(INDICES, _slot("written", -1), IndexError),
    "written_too_large": entry(INDICES, _slot("written", 0, past=True), IndexError),
    "written_huge": entry(INDICES, _slot("written", 2**30), IndexError),
    "read_negative": entry(INDICES, _slot("read", -1), IndexError),
    "read_too_large": entry(INDICES, _slot("read", 0, past=True), IndexError),
    "slot_twice": entry(INDICES, _twice_in_one, ValueError),
    "slot_of_two": entry(INDICES, _twice_in_two, ValueError),
    "slot_read_by_a_later": made(_read_by_another(-1, 0), ValueError, INDICES),
    "slot_read_by_an_earlier": made(_read_by_another(0, -1), ValueError, INDICES),
    "accepted_none": replaced("num_accepted_tokens", None, TypeError),
    "accepted_length": grown("num_accepted_tokens", 0, "query_start_loc", INDICES),
    "accepted_float": no_index("num_accepted_tokens"),
    "accepted_zero": entry("num_accepted_tokens", _accepted(0), ValueError),
    "accepted_negative": entry("num_accepted_tokens", _accepted(-1), ValueError),
    "accepted_too_many": entry("num_accepted_tokens", _accepted(None), ValueError),
    "offsets_rank": one_rank_more("query_start_loc"),
    "offsets_float": no_index("query_start_loc"),
    "offsets_empty": changed("query_start_loc", lambda offsets: offsets[:0], ValueError),
    "offsets_negative": moved_to("query_start_loc", 0, lambda given: -1),
    "offsets_beyond": moved_to("query_start_loc", -1, lambda given: len(given["q"]) + 1),
    "laid_over": laid_over(
        ("state",), ("q", "k", "v", "a", "b", "A_log", "dt_bias", "state_indices", "num_accepted_tokens", "query_start_loc")
    ),
    "num_accepted_tokens_beyond_32_bits": beyond_32_bits("num_accepted_tokens", ValueError, live=lambda case: case.live),
    "query_start_loc_beyond_32_bits": beyond_32_bits("query_start_loc", ValueError, INDICES),
}
