"""Wrong calls of chunk_gated_delta_rule: one for each error of its contract."""

import torch

from kernelpair.pair import Alias, Bad, Inputs
from properties._chunk_gated_delta_rule_cases import ChunkCase


def _replaced(error: type[Exception], argument: str | tuple[str, ...], **values: object) -> Bad:
    """The arguments with these values; only where the form has them."""

    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        return given | values if all(name in given for name in values) else None

    return Bad(spoil, error, argument)


def _grown(name: str, dim: int, *against: str) -> Bad:
    """One more entry of `name` in one dimension."""

    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        if given.get(name) is None:
            return None
        shape = list(given[name].shape)
        shape[dim] += 1
        return given | {name: given[name].new_zeros(shape)}

    return Bad(spoil, ValueError, (name, *against))


def _cast(name: str, dtype: torch.dtype, *against: str) -> Bad:
    """`name` in a dtype that it may not have."""

    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        value = given.get(name)
        return None if value is None or value.dtype == dtype else given | {name: torch.zeros(value.shape, dtype=dtype)}

    return Bad(spoil, TypeError, (name, *against))


def _other_float(name: str, *against: str) -> Bad:
    def spoil(case: ChunkCase, given: Inputs) -> Inputs:
        other = torch.float16 if case.dtype == "bfloat16" else torch.bfloat16
        return given | {name: torch.zeros(given[name].shape, dtype=other)}

    return Bad(spoil, TypeError, (name, *against))


def _gaps_in_last(name: str) -> Bad:
    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        value = given.get(name)
        if value is None or value.shape[-1] < 2 or not value.numel():
            return None
        return given | {name: value.repeat_interleave(2, dim=-1)[..., ::2]}

    return Bad(spoil, ValueError, name)


def _uneven_heads(case: ChunkCase, given: Inputs) -> Inputs:
    """A number of value heads that the key heads do not divide; with one key head, none at all."""
    heads = 2 * case.key_heads - 1 if case.key_heads > 1 else 0
    return given | {name: given[name].new_zeros((case.tokens, heads, *given[name].shape[2:])) for name in ("v", "g", "beta")}


def _falling(case: ChunkCase, given: Inputs) -> Inputs | None:
    wrong = given["cu_seqlens"].clone()
    if len(wrong) < 2 or wrong[-1] < 1:
        return None
    wrong[0] = wrong[-1]
    wrong[1:] = wrong[-1] - 1
    return given | {"cu_seqlens": wrong}


def _slot(value: int | None) -> Bad:
    """A live entry outside the pool; None: one past its end."""

    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        if case.form != "pool" or not case.live:
            return None
        wrong = given["state_indices"].clone().long()
        wrong[case.live[-1]] = case.slots if value is None else value
        return given | {"state_indices": wrong}

    return Bad(spoil, IndexError, "state_indices")


def _slot_twice(case: ChunkCase, given: Inputs) -> Inputs | None:
    if case.form != "pool" or len(case.live) < 2:
        return None
    wrong = given["state_indices"].clone()
    wrong[case.live[-1]] = wrong[case.live[0]]
    return given | {"state_indices": wrong}


def _self_overlap(case: ChunkCase, given: Inputs) -> Inputs | None:
    if case.form != "pool" or len(given["state"]) < 2:
        return None
    return given | {"state": given["state"][:1].expand(given["state"].shape)}


def _overlap(name: str) -> Bad:
    """`name` is a view of the pool."""

    def spoil(case: ChunkCase, given: Inputs) -> Inputs | None:
        if case.form != "pool" or given.get(name) is None:
            return None
        shape, dtype = given[name].shape, given[name].dtype
        if dtype != given["state"].dtype or not 0 < given[name].numel() <= given["state"].numel():
            return None
        count = given[name].numel()
        return given | {name: Alias("state", lambda state: state.as_strided((count,), (1,), state.storage_offset()).view(shape))}

    return Bad(spoil, ValueError, ("state", name))


NAN, INF = float("nan"), float("inf")
BAD = {
    "q_rank": Bad(lambda case, given: given | {"q": given["q"][None]}, ValueError, "q"),
    "q_none": _replaced(TypeError, "q", q=None),
    "q_int": _cast("q", torch.int32),
    "k_dtype": _other_float("k", "q"),
    "v_dtype": _other_float("v", "q"),
    "k_tokens": _grown("k", 0, "q"),
    "k_heads": _grown("k", 1, "q"),
    "k_width": _grown("k", 2, "q"),
    "v_tokens": _grown("v", 0, "q"),
    "v_uneven_heads": Bad(_uneven_heads, ValueError, ("v", "q")),
    "q_strides": _gaps_in_last("q"),
    "k_strides": _gaps_in_last("k"),
    "v_strides": _gaps_in_last("v"),
    "g_dtype": _cast("g", torch.bfloat16),
    "g_shape": _grown("g", 1),
    "beta_dtype": _cast("beta", torch.int64),
    "beta_shape": _grown("beta", 0),
    "initial_state_dtype": _cast("initial_state", torch.float16),
    "initial_state_count": _grown("initial_state", 0),
    "initial_state_width": _grown("initial_state", 3),
    "initial_state_strides": _gaps_in_last("initial_state"),
    "state_dtype": _cast("state", torch.float16),
    "state_heads": _grown("state", 1),
    "state_width": _grown("state", 2),
    "state_strides": _gaps_in_last("state"),
    "state_itself": Bad(_self_overlap, ValueError, "state"),
    "state_v_overlap": _overlap("v"),
    "state_g_overlap": _overlap("g"),
    "state_layout": _replaced(ValueError, "state_layout", state_layout="kk"),
    "state_layout_none": _replaced(TypeError, "state_layout", state_layout=None),
    "eps_zero": _replaced(ValueError, "eps", eps=0.0),
    "eps_nan": _replaced(ValueError, "eps", eps=NAN),
    "scale_negative": _replaced(ValueError, "scale", scale=-1.0),
    "scale_infinite": _replaced(ValueError, "scale", scale=INF),
    "offsets_negative": Bad(
        lambda case, given: given | {"cu_seqlens": given["cu_seqlens"] - case.before - 1}, ValueError, "cu_seqlens"
    ),
    "offsets_past_end": Bad(
        lambda case, given: given | {"cu_seqlens": given["cu_seqlens"] + case.after + 1}, ValueError, "cu_seqlens"
    ),
    "offsets_falling": Bad(_falling, ValueError, "cu_seqlens"),
    "offsets_none_at_all": Bad(lambda case, given: given | {"cu_seqlens": given["cu_seqlens"][:0]}, ValueError, "cu_seqlens"),
    "offsets_float": _cast("cu_seqlens", torch.float32),
    "offsets_rank": Bad(lambda case, given: given | {"cu_seqlens": given["cu_seqlens"][None]}, ValueError, "cu_seqlens"),
    "slot_negative": _slot(-1),
    "slot_too_large": _slot(None),
    "slot_huge": _slot(2**31),
    "slot_twice": Bad(_slot_twice, ValueError, "state_indices"),
    "slots_float": _cast("state_indices", torch.float32),
    "slots_count": _grown("state_indices", 0),
    "flags_dtype": _cast("has_initial_state", torch.int32),
    "flags_count": _grown("has_initial_state", 0),
}
