"""Wrong calls of gated_delta_rule_update: each error of the contract once."""

from typing import Any

import torch

from kernelpair.contract.pair import Alias, Inputs, WrongCall
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NAN,
    NO_SCALES,
    all_integers,
    all_negative,
    beside_wide,
    cast,
    changed,
    grown,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    self_overlapping,
    slot,
    slot_twice,
    sparse,
)


def _live(case: Any, given: Inputs) -> list[int]:
    return [row for row, slot in enumerate(given["state_indices"].tolist()) if slot != given["pad_slot"]]


def _indivisible(case: Any, given: Inputs) -> Inputs | None:
    """q and k with one head more than divides v's."""
    heads = given["v"].shape[1] + 1
    return given | {name: given[name].new_zeros(case.requests, heads, case.key_size) for name in ("q", "k")}


def _no_heads(case: Any, given: Inputs) -> Inputs:
    return given | {name: given[name][:, :0] for name in ("q", "k")}


def _overlap(case: Any, given: Inputs) -> Inputs | None:
    """v lies inside the state."""
    state = given["state"]
    if not case.requests or state.dtype != given["v"].dtype or case.state_layout != "kv":
        return None
    return given | {"v": Alias("state", lambda tensor: tensor[: case.requests, :, 0])}


def _slots(given: Inputs) -> int:
    return len(given["state"])


WRONG_CALLS = {
    "k_requests": grown("k", 0, "q"),
    "k_heads": grown("k", 1, "q"),
    "k_size": grown("k", 2, "q"),
    "v_requests": grown("v", 0, "q"),
    "a_requests": grown("a", 0),
    "a_heads": grown("a", 1),
    "b_requests": grown("b", 0),
    "b_heads": grown("b", 1),
    "A_log_heads": grown("A_log", 0),
    "dt_bias_heads": grown("dt_bias", 0),
    "state_heads": grown("state", 1),
    "state_rows": grown("state", 2),
    "state_columns": grown("state", 3),
    "heads_indivisible": WrongCall(_indivisible, ValueError, ("v", "q")),
    "heads_none": WrongCall(_no_heads, ValueError, ("v", "q")),
    "q_rank": one_rank_more("q"),
    "a_rank": one_rank_more("a"),
    "state_rank": changed("state", lambda state: state.flatten(0, 1), ValueError),
    "indices_length": grown("state_indices", 0),
    "indices_rank": one_rank_more("state_indices"),
    "layout_tag": replaced("state_layout", "kk", ValueError),
    "layout_empty": replaced("state_layout", "", ValueError),
    "layout_number": replaced("state_layout", 0, TypeError),
    **replaced_each("scale", NO_SCALES),
    **replaced_each("eps", NO_SCALES),
    **replaced_each("softplus_beta", NO_SCALES),
    "threshold_nan": replaced("softplus_threshold", NAN, ValueError),
    "k_dtype": other_dtype("k", "q"),
    "a_dtype": other_dtype("a", "q"),
    "q_integers": beside_wide(cast("q", torch.int32, "k", "v", "a", "b"), "A_log", "dt_bias"),
    "all_integers": beside_wide(all_integers("q", "k", "v", "a", "b"), "A_log", "dt_bias"),
    "A_log_dtype": cast("A_log", torch.float64),
    "state_float16": cast("state", torch.float16),
    "state_float64": cast("state", torch.float64),
    "indices_float": no_index("state_indices"),
    "v_none": replaced("v", None, TypeError),
    "q_strides": sparse("q"),
    "k_strides": sparse("k"),
    "v_strides": sparse("v"),
    "state_strides": sparse("state"),
    "index_negative": slot("state_indices", _live, -1),
    "all_negative": all_negative("state_indices", _live),
    "index_too_large": slot("state_indices", _live, 0, _slots),
    "index_huge": slot("state_indices", _live, 2**30),
    "index_duplicate": slot_twice("state_indices", _live),
    "state_overlaps_v": WrongCall(_overlap, ValueError, ("state", "v")),
    "state_overlaps_itself": self_overlapping("state"),
    "laid_over": laid_over(("state",), ("A_log", "dt_bias", "q", "k", "v", "a", "b", "state_indices")),
    "A_log_other_half": other_half("A_log"),
    "dt_bias_other_half": other_half("dt_bias"),
}
