"""Wrong calls of gated_delta_rule_update: each error of the contract once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs

Change = Callable[[Tensor], Tensor]


def _changed(error: type[Exception], name: str, change: Change, *against: str) -> Bad:
    return Bad(lambda case, given: given | {name: change(given[name])}, error, (name, *against))


def _set(error: type[Exception], name: str, value: object) -> Bad:
    return Bad(lambda case, given: given | {name: value}, error, name)


def _grown(dim: int) -> Change:
    def grow(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[dim] += 1
        return tensor.new_zeros(shape)

    return grow


def _other(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16 if tensor.dtype == torch.float32 else torch.float32)


def _live(given: Inputs) -> list[int]:
    return [row for row, slot in enumerate(given["state_indices"].tolist()) if slot != given["pad_slot"]]


def _index(value: int, beyond: bool = False) -> Bad:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if not _live(given):
            return None
        wrong = given["state_indices"].clone()
        wrong[_live(given)[-1]] = value + (len(given["state"]) if beyond else 0)
        return given | {"state_indices": wrong}

    return Bad(spoil, IndexError, "state_indices")


def _duplicate(case: Any, given: Inputs) -> Inputs | None:
    live = _live(given)
    if len(live) < 2:
        return None
    wrong = given["state_indices"].clone()
    wrong[live[-1]] = wrong[live[0]]
    return given | {"state_indices": wrong}


def _loose(name: str) -> Bad:
    """Every second element of the last dimension."""

    def spoil(case: Any, given: Inputs) -> Inputs | None:
        tensor = given[name]
        if tensor.shape[-1] < 2 or not tensor.numel():
            return None
        return given | {name: tensor.repeat_interleave(2, dim=-1)[..., ::2]}

    return Bad(spoil, ValueError, name)


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


def _self_overlap(case: Any, given: Inputs) -> Inputs | None:
    if len(given["state"]) < 2:
        return None
    return given | {"state": given["state"][:1].expand(given["state"].shape)}


BAD = {
    "k_requests": _changed(ValueError, "k", _grown(0), "q"),
    "k_heads": _changed(ValueError, "k", _grown(1), "q"),
    "k_size": _changed(ValueError, "k", _grown(2), "q"),
    "v_requests": _changed(ValueError, "v", _grown(0), "q"),
    "a_requests": _changed(ValueError, "a", _grown(0)),
    "a_heads": _changed(ValueError, "a", _grown(1)),
    "b_heads": _changed(ValueError, "b", _grown(1)),
    "A_log_heads": _changed(ValueError, "A_log", _grown(0)),
    "dt_bias_heads": _changed(ValueError, "dt_bias", _grown(0)),
    "state_heads": _changed(ValueError, "state", _grown(1)),
    "state_rows": _changed(ValueError, "state", _grown(2)),
    "state_columns": _changed(ValueError, "state", _grown(3)),
    "heads_indivisible": Bad(_indivisible, ValueError, ("v", "q")),
    "heads_none": Bad(_no_heads, ValueError, ("v", "q")),
    "q_rank": _changed(ValueError, "q", lambda q: q[None]),
    "a_rank": _changed(ValueError, "a", lambda a: a[None]),
    "state_rank": _changed(ValueError, "state", lambda state: state[0]),
    "indices_length": _changed(ValueError, "state_indices", _grown(0)),
    "indices_rank": _changed(ValueError, "state_indices", lambda indices: indices[None]),
    "layout_tag": _set(ValueError, "state_layout", "kk"),
    "layout_empty": _set(ValueError, "state_layout", ""),
    "scale_zero": _set(ValueError, "scale", 0.0),
    "scale_nan": _set(ValueError, "scale", float("nan")),
    "scale_infinite": _set(ValueError, "scale", float("inf")),
    "eps_zero": _set(ValueError, "eps", 0.0),
    "eps_negative": _set(ValueError, "eps", -1e-6),
    "eps_nan": _set(ValueError, "eps", float("nan")),
    "beta_zero": _set(ValueError, "softplus_beta", 0.0),
    "beta_infinite": _set(ValueError, "softplus_beta", float("inf")),
    "threshold_nan": _set(ValueError, "softplus_threshold", float("nan")),
    "k_dtype": _changed(TypeError, "k", _other, "q"),
    "a_dtype": _changed(TypeError, "a", _other, "q"),
    "q_integers": _changed(TypeError, "q", lambda q: q.nan_to_num().to(torch.int32)),
    "A_log_dtype": _changed(TypeError, "A_log", lambda vector: vector.to(torch.float64)),
    "state_float16": _changed(TypeError, "state", lambda state: state.to(torch.float16)),
    "indices_float": _changed(TypeError, "state_indices", lambda indices: indices.float()),
    "v_none": _set(TypeError, "v", None),
    "q_strides": _loose("q"),
    "k_strides": _loose("k"),
    "v_strides": _loose("v"),
    "state_strides": _loose("state"),
    "index_negative": _index(-1),
    "index_too_large": _index(0, beyond=True),
    "index_huge": _index(2**30),
    "index_duplicate": Bad(_duplicate, ValueError, "state_indices"),
    "state_overlaps_v": Bad(_overlap, ValueError, ("state", "v")),
    "state_overlaps_itself": Bad(_self_overlap, ValueError, "state"),
}
