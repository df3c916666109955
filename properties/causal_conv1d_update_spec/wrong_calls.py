"""causal_conv1d_update_spec: calls that both sides refuse."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs
from properties.causal_conv1d.wrong_calls import weight_calls
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    all_integers,
    all_negative,
    always,
    any_of,
    beside_wide,
    beyond_32_bits,
    cast,
    changed,
    entry,
    falling,
    grown,
    made,
    moved_to,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    self_overlapping,
    slot,
    slot_twice,
    within,
)


def _live(case: Any, given: Inputs) -> list[int]:
    live: list[int] = case.live
    return live


def _slots(given: Inputs) -> int:
    return len(given["conv_states"])


def _accepted(value: int | None) -> Any:
    """A live request's count: `value`, or one more than there are columns for."""

    def pick(case: Any, given: Inputs) -> tuple[int, int] | None:
        most = case.columns - case.width + 2
        return (any_of(case, case.live), most + 1 if value is None else value) if case.live else None

    return pick


def _too_few_columns(case: Any, given: Inputs) -> Inputs | None:
    """As many columns as the histories take, and one less than the tokens."""
    longest = max((case.lengths[b] for b in case.live), default=0)
    columns = case.width + longest - 3
    if longest < 2 or max(case.accepted[b] for b in case.live) > longest - 1:
        return None
    return given | {"conv_states": given["conv_states"][:, :, :columns].contiguous()}


def _loose_states(case: Any, given: Inputs) -> Inputs | None:
    states = given["conv_states"]
    if states.shape[1] < 2 or states.shape[2] < 2 or not states.numel():
        return None
    return given | {"conv_states": states.repeat_interleave(2, dim=2)[:, :, ::2]}


WRONG_CALLS = {
    **weight_calls(always),
    "x_rank": one_rank_more("x"),
    "x_none": replaced("x", None, TypeError),
    "x_dtype": beside_wide(other_dtype("x", "packed", "packed_weight", "conv_states"), "bias"),
    "x_integers": beside_wide(cast("x", torch.int32, "packed", "packed_weight", "conv_states"), "bias"),
    "all_integers": beside_wide(all_integers("x", "packed_weight", "conv_states"), "bias"),
    "states_none": replaced("conv_states", None, TypeError),
    "states_rank": changed("conv_states", lambda s: s.flatten(0, 1), ValueError),
    "states_dtype": other_dtype("conv_states", "x", "packed", "packed_weight"),
    "states_channels": grown("conv_states", 1),
    "states_strides": made(_loose_states, ValueError, "conv_states"),
    "states_overlap_themselves": self_overlapping("conv_states"),
    "states_columns": made(_too_few_columns, ValueError, "conv_states", "num_accepted_tokens"),
    "x_in_states": within("x", "conv_states"),
    "bias_length": grown("bias", 0),
    "bias_dtype": cast("bias", torch.float64),
    "bias_other_half": other_half("bias"),
    "indices_none": replaced("cache_indices", None, TypeError),
    "indices_length": grown("cache_indices", 0, "query_start_loc", "num_accepted_tokens"),
    "indices_float": no_index("cache_indices"),
    "index_negative": slot("cache_indices", _live, -1),
    "all_negative": all_negative("cache_indices", _live),
    "index_too_large": slot("cache_indices", _live, 0, _slots),
    "index_huge": slot("cache_indices", _live, 2**30),
    "index_duplicate": slot_twice("cache_indices", _live),
    "accepted_none": replaced("num_accepted_tokens", None, TypeError),
    "accepted_length": grown("num_accepted_tokens", 0, "query_start_loc", "cache_indices"),
    "accepted_float": no_index("num_accepted_tokens"),
    "accepted_rank": one_rank_more("num_accepted_tokens"),
    "accepted_zero": entry("num_accepted_tokens", _accepted(0), ValueError),
    "accepted_negative": entry("num_accepted_tokens", _accepted(-1), ValueError),
    "accepted_too_many": entry("num_accepted_tokens", _accepted(None), ValueError),
    "offsets_none": replaced("query_start_loc", None, TypeError),
    "offsets_rank": one_rank_more("query_start_loc"),
    "offsets_float": no_index("query_start_loc"),
    "offsets_empty": changed("query_start_loc", lambda offsets: offsets[:0], ValueError),
    "offsets_negative": moved_to("query_start_loc", 0, lambda given: -1),
    "offsets_falling": falling("query_start_loc", "conv_states"),
    "offsets_beyond": moved_to("query_start_loc", -1, lambda given: len(given["x"]) + 1),
    "laid_over": laid_over(
        ("conv_states",), ("x", "packed_weight", "bias", "query_start_loc", "cache_indices", "num_accepted_tokens")
    ),
    "num_accepted_tokens_beyond_32_bits": beyond_32_bits("num_accepted_tokens", ValueError, live=lambda case: case.live),
    "query_start_loc_beyond_32_bits": beyond_32_bits("query_start_loc", ValueError, "conv_states"),
}
