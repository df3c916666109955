"""Wrong calls of gdn_attention_core, one for each error of its contract. Without tokens nothing is done, nor checked."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs
from properties._gdn_attention_core_cases import GdnCase


def _bad(change: Callable[[GdnCase, Inputs], Inputs | None], error: type[Exception], *names: str) -> Bad:
    return Bad(lambda case, given: change(case, given) if case.tokens else None, error, names)


def _set(error: type[Exception], *names: str, **values: object) -> Bad:
    return _bad(lambda case, given: given | values, error, *names)


def _added(name: str, step: int, *also: str) -> Bad:
    """A count that is off by `step`."""
    return _bad(lambda case, given: given | {name: given[name] + step}, ValueError, name, *also)


def _grown(name: str, dim: int, *also: str) -> Bad:
    def grow(case: GdnCase, given: Inputs) -> Inputs | None:
        if given[name] is None:
            return None
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return _bad(grow, ValueError, name, *also)


def _cast(name: str, dtype: torch.dtype, *also: str) -> Bad:
    def cast(case: GdnCase, given: Inputs) -> Inputs | None:
        if given[name] is None or given[name].dtype == dtype:
            return None
        return given | {name: torch.zeros(given[name].shape, dtype=dtype)}

    return _bad(cast, TypeError, name, *also)


def _gaps(name: str) -> Bad:
    def spread(case: GdnCase, given: Inputs) -> Inputs | None:
        if given[name].shape[-1] < 2:
            return None
        return given | {name: given[name].repeat_interleave(2, dim=-1)[..., ::2]}

    return _bad(spread, ValueError, name)


def _slots(change: Callable[[GdnCase, Tensor], Tensor | None], error: type[Exception]) -> Bad:
    def spoil(case: GdnCase, given: Inputs) -> Inputs | None:
        wrong = change(case, given["state_indices"].clone().long()) if case.live else None
        return None if wrong is None else given | {"state_indices": wrong}

    return _bad(spoil, error, "state_indices")


def _last_to(value: int | None) -> Callable[[GdnCase, Tensor], Tensor]:
    def change(case: GdnCase, slots: Tensor) -> Tensor:
        slots[case.live[-1]] = case.slots if value is None else value
        return slots

    return change


def _twice(case: GdnCase, slots: Tensor) -> Tensor | None:
    """The last live request, a prefill where there is one, takes the first one's slot."""
    if len(case.live) < 2:
        return None
    slots[case.live[-1]] = slots[case.live[0]]
    return slots


def _shorter(name: str) -> Bad:
    """One row less than there are tokens."""
    return _bad(lambda case, given: given | {name: given[name][: case.tokens - 1]}, ValueError, name)


def _same_memory(case: GdnCase, given: Inputs) -> Inputs | None:
    """The states as a part of the outputs' memory, where they have one dtype and fit."""
    state, out = given["ssm_state"], given["core_attn_out"]
    if state.dtype != out.dtype or not 0 < out.numel() <= state.numel():
        return None
    count, shape = out.numel(), out.shape
    view = Alias("ssm_state", lambda t: t.as_strided((count,), (1,), t.storage_offset()).view(shape))
    return given | {"core_attn_out": view}


def _itself(case: GdnCase, given: Inputs) -> Inputs:
    return given | {"conv_state": given["conv_state"][:1].expand(given["conv_state"].shape)}


TOTAL = ("num_actual_tokens", "query_start_loc", "num_decodes", "num_decode_tokens", "num_prefill_tokens", "num_prefills")
BAD = {
    "decode_tokens": _added("num_decode_tokens", 1, *TOTAL),
    "decodes": _added("num_decodes", 1, *TOTAL),
    "prefills": _added("num_prefills", 1, "state_indices"),
    "prefill_tokens": _added("num_prefill_tokens", 1, *TOTAL),
    "prefills_negative": _set(ValueError, "num_prefills", "num_prefill_tokens", num_prefills=-1),
    "actual_tokens": _added("num_actual_tokens", 1, *TOTAL),
    "indices_count": _grown("state_indices", 0),
    "indices_float": _cast("state_indices", torch.float32),
    "offsets_count": _grown("query_start_loc", 0),
    "offsets_shifted": _bad(
        lambda case, given: given | {"query_start_loc": given["query_start_loc"] + 1}, ValueError, "query_start_loc"
    ),
    "offsets_float": _cast("query_start_loc", torch.float64),
    "flags_int": _cast("has_initial_state", torch.int64),
    "flags_count": _grown("has_initial_state", 0),
    "slot_negative": _slots(_last_to(-1), IndexError),
    "slot_too_large": _slots(_last_to(None), IndexError),
    "slot_twice": _slots(_twice, ValueError),
    "mixed_rows": _shorter("mixed_qkv"),
    "a_rows": _shorter("a"),
    "out_rows": _shorter("core_attn_out"),
    "mixed_width": _grown("mixed_qkv", 1, "conv_weight"),
    "mixed_strides": _gaps("mixed_qkv"),
    "mixed_int": _cast("mixed_qkv", torch.int32),
    "a_heads": _grown("a", 1),
    "b_heads": _grown("b", 1),
    "b_dtype": _cast("b", torch.float64, "mixed_qkv"),
    "out_width": _grown("core_attn_out", 2),
    "out_strides": _gaps("core_attn_out"),
    "conv_columns": _grown("conv_state", 1),
    "conv_dtype": _cast("conv_state", torch.int32),
    "conv_itself": _bad(_itself, ValueError, "conv_state"),
    "state_heads": _grown("ssm_state", 1),
    "state_width": _grown("ssm_state", 3),
    "state_dtype": _cast("ssm_state", torch.int32),
    "state_strides": _gaps("ssm_state"),
    "state_overlap": _bad(_same_memory, ValueError, "core_attn_out", "ssm_state"),
    "weight_plain": _bad(lambda case, given: given | {"conv_weight": given["conv_weight"][0, 0]}, TypeError, "conv_weight"),
    "bias_length": _grown("conv_bias", 0),
    "bias_int": _cast("conv_bias", torch.int32),
    "A_log_length": _grown("A_log", 0),
    "dt_bias_int": _cast("dt_bias", torch.int32),
    "heads_zero": _set(ValueError, "num_k_heads", num_k_heads=0),
    "conv_layout": _set(ValueError, "conv_layout", conv_layout="sd"),
    "state_layout": _set(ValueError, "state_layout", state_layout="KV"),
    "state_layout_none": _set(TypeError, "state_layout", state_layout=None),
    "eps_zero": _set(ValueError, "eps", eps=0.0),
}
