"""Wrong calls of gdn_attention_core, one for each error of its contract. Without tokens nothing is done, nor checked."""

from dataclasses import replace

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.causal_conv1d.wrong_calls import fewest_channels
from properties.gdn_attention_core.cases import GdnCase, inputs
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NO_SCALES,
    all_negative,
    beside_wide,
    cast,
    changed,
    entry,
    falling,
    grown,
    larger,
    made,
    other_dtype,
    other_half,
    replaced,
    self_overlapping,
    slot,
    slot_twice,
    sparse,
    within,
)


def _busy(case: GdnCase) -> bool:
    return case.tokens > 0


def _live(case: GdnCase, given: Inputs) -> list[int]:
    return list(case.live) if case.tokens else []


def _slots(given: Inputs) -> int:
    return min(len(given["conv_state"]), len(given["ssm_state"]))


def _added(name: str, step: int, *also: str) -> WrongCall:
    """A count that is off by `step`."""
    return made(lambda case, given: given | {name: given[name] + step}, ValueError, name, *also, when=_busy)


def _shorter(name: str) -> WrongCall:
    """One row less than there are tokens."""
    return made(
        lambda case, given: given | {name: given[name][: case.tokens - 1]}, ValueError, name, "num_actual_tokens", when=_busy
    )


def _too_few_columns(case: GdnCase, given: Inputs) -> Inputs:
    few = given["conv_state"].narrow(1 if case.conv_layout == "SD" else 2, 0, case.width - 2)
    return given | {"conv_state": few.contiguous()}


def _more_channels(case: GdnCase, given: Inputs) -> Inputs:
    return given | {"conv_state": larger(2 if case.conv_layout == "SD" else 1)(given["conv_state"])}


def _short(cache: str) -> WrongCall:
    """A cache without the slot of the last request, which the other cache has."""

    def make(case: GdnCase, given: Inputs) -> Inputs | None:
        if not case.live:
            return None
        indices, last = given["state_indices"].clone(), case.live[-1]
        highest = max(case.live, key=lambda r: int(indices[r]))
        indices[[last, highest]] = indices[[highest, last]]
        return given | {"state_indices": indices, cache: given[cache][: int(indices[last])]}

    return made(make, IndexError, "state_indices")


def _falling_prefills(case: GdnCase, given: Inputs) -> Inputs:
    """Offsets fall behind a decode, which is right by itself, and end where they should."""
    prefills = (2, 1, *case.prefills)
    wrong = inputs(replace(case, decodes=case.decodes or 1, prefills=prefills, pads=(), pad_in_range=False, cold=()))
    wrong["query_start_loc"][wrong["num_decodes"] + 1] = wrong["num_decodes"] - 1
    return wrong


def _same_blocks(case: GdnCase, given: Inputs) -> Inputs:
    """A weight of fewer or more channels that fill as many blocks of 32."""
    fewest = fewest_channels(case.dim)
    return given | {"channels": fewest if fewest < case.dim else case.dim + 1}


TOTAL = ("num_actual_tokens", "query_start_loc", "num_decodes", "num_decode_tokens", "num_prefill_tokens", "num_prefills")
OF_REQUESTS = ("state_indices", "has_initial_state")  # an entry for each
WRONG_CALLS = {
    "decode_tokens": _added("num_decode_tokens", 1, *TOTAL),
    "decodes": _added("num_decodes", 1, *TOTAL, *OF_REQUESTS),
    "prefills": _added("num_prefills", 1, "query_start_loc", *OF_REQUESTS),
    "prefill_tokens": _added("num_prefill_tokens", 1, *TOTAL),
    "prefills_negative": replaced("num_prefills", -1, ValueError, *TOTAL, *OF_REQUESTS, when=_busy),
    "actual_tokens": _added("num_actual_tokens", 1, *TOTAL),
    "indices_count": grown("state_indices", 0, "query_start_loc", when=_busy),
    "indices_float": cast("state_indices", torch.float32, when=_busy),
    "offsets_count": grown("query_start_loc", 0, when=_busy),
    "offsets_shifted": changed("query_start_loc", lambda offsets: offsets + 1, ValueError, when=_busy),
    "offsets_falling": falling("query_start_loc", *TOTAL, when=_busy),
    "offsets_end_early": entry("query_start_loc", lambda case, given: (-1, case.tokens - 1), ValueError, *TOTAL, when=_busy),
    "decode_of_two": entry("query_start_loc", lambda case, given: (1, 2), ValueError, when=lambda case: case.decodes > 1),
    "prefills_falling": made(_falling_prefills, ValueError, "query_start_loc"),
    "offsets_float": cast("query_start_loc", torch.float64, when=_busy),
    "flags_int": cast("has_initial_state", torch.int64, when=_busy),
    "flags_count": grown("has_initial_state", 0, when=_busy),
    "slot_negative": slot("state_indices", _live, -1),
    "all_negative": all_negative("state_indices", _live),
    "slot_too_large": slot("state_indices", _live, 0, _slots),
    **{f"{cache}_short": _short(cache) for cache in ("conv_state", "ssm_state")},
    "slot_twice": slot_twice("state_indices", _live),
    "mixed_rows": _shorter("mixed_qkv"),
    "a_rows": _shorter("a"),
    "b_rows": _shorter("b"),
    "out_rows": _shorter("core_attn_out"),
    "mixed_width": grown("mixed_qkv", 1, "conv_weight", "conv_bias", "conv_state", when=_busy),
    "mixed_strides": sparse("mixed_qkv", when=_busy),
    "mixed_int": beside_wide(
        cast("mixed_qkv", torch.int32, "a", "b", "conv_weight", "conv_state", when=_busy), "A_log", "dt_bias", "conv_bias"
    ),
    "a_heads": grown("a", 1, when=_busy),
    "b_heads": grown("b", 1, when=_busy),
    "b_dtype": cast("b", torch.float64, "mixed_qkv", when=_busy),
    "out_width": grown("core_attn_out", 2, when=_busy),
    "out_strides": sparse("core_attn_out", when=_busy),
    "conv_columns": made(_too_few_columns, ValueError, "conv_state", when=_busy),
    "conv_channels": made(_more_channels, ValueError, "conv_state", when=_busy),
    "conv_strides": sparse("conv_state", when=_busy),
    "conv_dtype": cast("conv_state", torch.int32, "mixed_qkv", when=_busy),
    "conv_itself": self_overlapping("conv_state", when=_busy),
    "state_heads": grown("ssm_state", 1, when=_busy),
    "state_width": grown("ssm_state", 3, when=_busy),
    "state_dtype": cast("ssm_state", torch.int32, when=_busy),
    "state_float16": cast("ssm_state", torch.float16, when=_busy),
    "state_float64": cast("ssm_state", torch.float64, when=_busy),
    "state_strides": sparse("ssm_state", when=_busy),
    "state_overlap": within("core_attn_out", "ssm_state", when=_busy),
    "weight_overlap": within("core_attn_out", "conv_weight", when=_busy),
    "weight_in_states": within("conv_weight", "ssm_state", when=_busy),
    "laid_over": laid_over(
        ("core_attn_out", "conv_state", "ssm_state"),
        ("mixed_qkv", "a", "b", "A_log", "dt_bias", "conv_weight", "conv_bias", "state_indices", "query_start_loc",
         "has_initial_state"),
        when=_busy,
    ),
    "weight_plain": made(
        lambda case, given: given | {"conv_weight": given["conv_weight"][0, 0]}, TypeError, "conv_weight", when=_busy
    ),
    "weight_channels": made(_same_blocks, ValueError, "conv_weight", "mixed_qkv", when=_busy),
    "weight_tag": replaced("tag", "rows", ValueError, "conv_weight", "packed", "layout", when=_busy),
    "weight_dtype": other_dtype("conv_weight", "mixed_qkv", when=_busy),
    "bias_length": grown("conv_bias", 0, when=_busy),
    "bias_other_half": other_half("conv_bias", when=_busy),
    "bias_int": cast("conv_bias", torch.int32, when=_busy),
    "A_log_length": grown("A_log", 0, when=_busy),
    "A_log_other_half": other_half("A_log", when=_busy),
    "dt_bias_other_half": other_half("dt_bias", when=_busy),
    "dt_bias_int": cast("dt_bias", torch.int32, when=_busy),
    "heads_zero": replaced("num_k_heads", 0, ValueError, when=_busy),
    "conv_layout": replaced("conv_layout", "sd", ValueError, when=_busy),
    "state_layout": replaced("state_layout", "KV", ValueError, when=_busy),
    "state_layout_none": replaced("state_layout", None, TypeError, when=_busy),
    "pad_slot_float": replaced("pad_slot", 0.5, TypeError, when=_busy),
    "silu_text": replaced("silu_activation", "yes", TypeError, when=_busy),
    "l2norm_text": replaced("use_qk_l2norm", "yes", TypeError, when=_busy),
    "eps_text": replaced("eps", "1e-6", TypeError, when=_busy),
    **{f"eps_{value}": replaced("eps", value, ValueError, when=_busy) for value in NO_SCALES},
    "eps_zero_in_float32": replaced("eps", 1e-60, ValueError, when=_busy),
}
