"""One wrong call for each error in the contract of flash_attn_varlen."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.shared.wrong_calls import (
    INF,
    NAN,
    NEXT_TO_0,
    NO_CAPS,
    NO_SCALES,
    all_integers,
    beside_wide,
    beyond_32_bits,
    cast,
    changed,
    entry,
    falling,
    grown,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    setting,
    sparse,
    with_sink,
)

FLOATS = ("q", "k", "v")
OFFSETS = {"cu_seqlens_q": "q", "cu_seqlens_k": "k"}


def _one_head_more(case: Any, given: Inputs) -> Inputs | None:
    """A number of query heads that the kv heads do not divide."""
    if case.kv_heads == 1 or not case.heads:
        return None
    wide = {"q": torch.cat([given["q"], given["q"][:, :1]], dim=1)}
    if given["sinks"] is not None:
        wide["sinks"] = torch.cat([given["sinks"], given["sinks"][:1]])
    return given | wide


def _past_the_end(name: str) -> WrongCall:
    return entry(name, lambda case, given: (-1, len(given[OFFSETS[name]]) + 1), ValueError)


def _both_said(case: Any, given: Inputs) -> Inputs:
    flags = torch.zeros(len(case.rows), dtype=torch.bool)
    return given | {"causal": True, "causal_requests": flags}


WRONG_CALLS = {
    "q_none": replaced("q", None, TypeError),
    "q_integer": beside_wide(cast("q", torch.int32, *FLOATS), "sinks"),
    "all_integers": beside_wide(all_integers(*FLOATS), "sinks"),
    **{f"{name}_dtype": beside_wide(other_dtype(name, *FLOATS), "sinks") for name in FLOATS},
    **{f"{name}_rank": one_rank_more(name) for name in (*FLOATS, *OFFSETS)},
    **{f"{name}_sparse": sparse(name) for name in FLOATS},
    "q_width": grown("q", 2, "k"),
    "k_width": grown("k", 2, "q"),
    **{f"{name}_{dim}": grown(name, dim, "k", "v", "q") for name in ("k", "v") for dim in range(2)},
    **{f"{name}_no_index": no_index(name) for name in OFFSETS},
    **{f"{name}_negative": entry(name, lambda case, given: (0, -1), ValueError) for name in OFFSETS},
    **{f"{name}_falling": falling(name) for name in OFFSETS},
    **{f"{name}_past_the_end": _past_the_end(name) for name in OFFSETS},
    "cu_seqlens_k_short": changed("cu_seqlens_k", lambda t: t[:-1] if len(t) > 1 else None, ValueError, "cu_seqlens_q"),
    "cu_seqlens_k_length": changed("cu_seqlens_k", lambda t: torch.cat([t, t[-1:]]), ValueError, "cu_seqlens_q"),
    "cu_seqlens_q_empty": changed("cu_seqlens_q", lambda offsets: offsets[:0], ValueError),
    "causal_text": replaced("causal", "yes", TypeError),
    "flags_dtype": cast("causal_requests", torch.int32),
    "flags_count": grown("causal_requests", 0),
    "flags_and_causal": WrongCall(_both_said, ValueError, ("causal", "causal_requests")),
    "alignment": replaced("alignment", "top_right", ValueError),
    "alignment_none": replaced("alignment", None, TypeError),
    "heads": WrongCall(_one_head_more, ValueError, ("q", "k")),
    **replaced_each("softmax_scale", NO_SCALES),
    **replaced_each("softcap", NO_CAPS),
    "softcap_next_to_0": made(setting(softcap=NEXT_TO_0, softmax_scale=0.5), ValueError, "softcap"),
    "window_left": replaced("window_left", -2, ValueError),
    "window_right": replaced("window_right", -2, ValueError),
    "sink_nan": with_sink(NAN),
    "sink_inf": with_sink(INF),
    "sinks_length": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads + 1)}, ValueError, "sinks"),
    "sinks_integer": WrongCall(lambda case, given: given | {"sinks": torch.zeros(case.heads).int()}, TypeError, "sinks"),
    "cu_seqlens_q_beyond_32_bits": beyond_32_bits("cu_seqlens_q", ValueError),
    "cu_seqlens_k_beyond_32_bits": beyond_32_bits("cu_seqlens_k", ValueError),
    "sinks_other_half": other_half("sinks"),
}
