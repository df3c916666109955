"""Wrong calls of chunk_gated_delta_rule: one for each error of its contract."""

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.chunk_gated_delta_rule.cases import ChunkCase
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NO_SCALES,
    all_integers,
    all_negative,
    beside_wide,
    beyond_32_bits,
    cast,
    changed,
    falling,
    grown,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    self_overlapping,
    slot,
    slot_twice,
    sparse,
    within,
)


def _uneven_heads(case: ChunkCase, given: Inputs) -> Inputs:
    """A number of value heads that the key heads do not divide; with one key head, none at all."""
    heads = 2 * case.key_heads - 1 if case.key_heads > 1 else 0
    return given | {name: given[name].new_zeros((case.tokens, heads, *given[name].shape[2:])) for name in ("v", "g", "beta")}


def _live(case: ChunkCase, given: Inputs) -> list[int]:
    return list(case.live) if case.form == "pool" else []


def _functional(case: ChunkCase) -> bool:
    return case.form == "functional"


def _slots(given: Inputs) -> int:
    return len(given["state"])


WRONG_CALLS = {
    "head_first_text": replaced("head_first", "yes", TypeError, when=_functional),
    "output_final_state_none": replaced("output_final_state", None, TypeError, when=_functional),
    "q_rank": one_rank_more("q"),
    "q_none": replaced("q", None, TypeError),
    "q_int": beside_wide(cast("q", torch.int32, "k", "v"), "beta"),
    "k_dtype": other_dtype("k", "q"),
    "v_dtype": other_dtype("v", "q"),
    "all_integers": beside_wide(all_integers("q", "k", "v"), "beta"),
    "k_tokens": grown("k", 0, "q"),
    "k_heads": grown("k", 1, "q"),
    "k_width": grown("k", 2, "q"),
    "v_tokens": grown("v", 0, "q"),
    "v_uneven_heads": WrongCall(_uneven_heads, ValueError, ("v", "q", "initial_state", "state")),
    "q_strides": sparse("q"),
    "k_strides": sparse("k"),
    "v_strides": sparse("v"),
    "g_dtype": cast("g", torch.bfloat16),
    "g_tokens": grown("g", 0),
    "g_shape": grown("g", 1),
    "beta_dtype": cast("beta", torch.int64),
    "beta_other_half": other_half("beta"),
    "beta_shape": grown("beta", 0),
    "beta_heads": grown("beta", 1),
    "initial_state_dtype": cast("initial_state", torch.float16),
    "initial_state_float64": cast("initial_state", torch.float64),
    "initial_state_count": grown("initial_state", 0, "cu_seqlens"),
    "initial_state_width": grown("initial_state", 3),
    "initial_state_strides": sparse("initial_state"),
    "state_dtype": cast("state", torch.float16),
    "state_float64": cast("state", torch.float64),
    "state_heads": grown("state", 1),
    "state_width": grown("state", 2),
    "state_strides": sparse("state"),
    "state_itself": self_overlapping("state"),
    "state_v_overlap": within("v", "state"),
    "state_g_overlap": within("g", "state"),
    "state_layout": replaced("state_layout", "kk", ValueError),
    "state_layout_none": replaced("state_layout", None, TypeError),
    "accurate_text": replaced("accurate", "yes", TypeError),
    **replaced_each("eps", NO_SCALES),
    **replaced_each("scale", NO_SCALES),
    "offsets_negative": WrongCall(
        lambda case, given: given | {"cu_seqlens": given["cu_seqlens"] - case.before - 1}, ValueError, "cu_seqlens"
    ),
    "offsets_past_end": WrongCall(
        lambda case, given: given | {"cu_seqlens": given["cu_seqlens"] + case.after + 1}, ValueError, "cu_seqlens"
    ),
    "offsets_falling": falling("cu_seqlens"),
    "offsets_none_at_all": changed("cu_seqlens", lambda offsets: offsets[:0], ValueError),
    "offsets_float": cast("cu_seqlens", torch.float32),
    "offsets_rank": one_rank_more("cu_seqlens"),
    "slot_negative": slot("state_indices", _live, -1),
    "all_negative": all_negative("state_indices", _live),
    "slot_too_large": slot("state_indices", _live, 0, _slots),
    "slot_huge": slot("state_indices", _live, 2**31),
    "slot_twice": slot_twice("state_indices", _live),
    "slots_float": cast("state_indices", torch.float32),
    "slots_count": grown("state_indices", 0, "cu_seqlens", "has_initial_state"),
    "flags_dtype": cast("has_initial_state", torch.int32),
    "flags_count": grown("has_initial_state", 0, "cu_seqlens", "state_indices"),
    "laid_over": laid_over(("state",), ("q", "k", "v", "g", "beta", "state_indices", "has_initial_state", "cu_seqlens")),
    "cu_seqlens_beyond_32_bits": beyond_32_bits("cu_seqlens", ValueError),
}
