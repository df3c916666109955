"""Wrong calls of causal_conv1d: each error of the contract once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.pair import Alias, Bad, Inputs
from properties._causal_conv1d_batch import Request, requests

Spoil = Callable[[Any, Inputs], Inputs | None]


def _of(*forms: str) -> Callable[[Spoil], Spoil]:
    """A spoiler for some forms only."""

    def wrap(spoil: Spoil) -> Spoil:
        return lambda case, given: spoil(case, given) if given["form"] in forms else None

    return wrap


CONVOLVES = ("batched", "varlen", "update")
FORWARD = ("batched", "varlen")


def _set(**wrong: Any) -> Spoil:
    return lambda case, given: given | wrong


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    """Replace one tensor, where it is given."""
    return lambda case, given: None if given.get(name) is None else given | {name: change(given[name])}


def _live(given: Inputs) -> list[Request]:
    return [request for request in requests(given) if request.live]


def _index(value: int, beyond: bool = False) -> Spoil:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        if given.get("cache_indices") is None or not _live(given):
            return None
        wrong = given["cache_indices"].clone()
        wrong[_live(given)[0].row] = value + (len(given["conv_states"]) if beyond else 0)
        return given | {"cache_indices": wrong}

    return spoil


def _duplicate(case: Any, given: Inputs) -> Inputs | None:
    if given.get("cache_indices") is None or len(_live(given)) < 2:
        return None
    wrong = given["cache_indices"].clone()
    wrong[_live(given)[-1].row] = wrong[_live(given)[0].row]
    return given | {"cache_indices": wrong}


def _too_few_slots(case: Any, given: Inputs) -> Inputs | None:
    if given["conv_states"] is None or given["cache_indices"] is not None or not requests(given):
        return None
    return given | {"conv_states": given["conv_states"][: len(requests(given)) - 1]}


def _offsets(change: Callable[[Tensor, int], Tensor]) -> Spoil:
    def spoil(case: Any, given: Inputs) -> Inputs | None:
        offsets = given["query_start_loc"].clone()
        return given | {"query_start_loc": change(offsets, given["x"].shape[1])}

    return _of("varlen")(spoil)


def _put(at: int, value: int) -> Callable[[Tensor, int], Tensor]:
    def change(offsets: Tensor, tokens: int) -> Tensor:
        offsets[at] = value if value < 0 else tokens + value
        return offsets

    return change


def _decreasing(case: Any, given: Inputs) -> Inputs | None:
    offsets = given["query_start_loc"].clone()
    if len(offsets) < 2 or given["x"].shape[1] < 1:
        return None
    offsets[0] = 1 if len(offsets) == 2 else offsets[0]
    offsets[-2], offsets[-1] = max(int(offsets[-2]), 1), 0
    return given | {"query_start_loc": offsets}


def _without_states(name: str) -> Spoil:
    def spoil(case: Any, given: Inputs) -> Inputs:
        count = len(requests(given))
        value = torch.zeros(count, dtype=torch.bool) if name == "has_initial_state" else torch.arange(count)
        both: Inputs = {"conv_states": None, "cache_indices": None, "has_initial_state": None}
        return given | both | {name: value}

    return _of(*FORWARD)(spoil)


def _loose_states(case: Any, given: Inputs) -> Inputs | None:
    """Neither channels nor columns dense."""
    states = given["conv_states"]
    if states is None or states.shape[1] < 2 or states.shape[2] < 2 or not states.numel():
        return None
    return given | {"conv_states": states.repeat_interleave(2, dim=2)[:, :, ::2]}


def _loose_weight(case: Any, given: Inputs) -> Inputs:
    packed = given["packed_weight"]
    return given | {"packed_weight": packed.repeat_interleave(2, dim=3)[..., ::2]}


def _overlap(case: Any, given: Inputs) -> Inputs | None:
    """x lies inside the state."""
    states = given["conv_states"]
    rows = len(given["x"])
    if states is None or given["form"] != "update" or not given["x"].numel() or rows > len(states):
        return None
    return given | {"x": Alias("conv_states", lambda tensor: tensor[:rows, :, 0])}


def _self_overlap(case: Any, given: Inputs) -> Inputs | None:
    states = given["conv_states"]
    if states is None or len(states) < 2:
        return None
    return given | {"conv_states": states[:1].expand(states.shape)}


def _other(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16 if tensor.dtype == torch.float32 else torch.float32)


def _grown(dim: int) -> Callable[[Tensor], Tensor]:
    def grow(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[dim] += 1
        return tensor.new_zeros(shape)

    return grow


def _bad(spoil: Spoil, error: type[Exception], *names: str, forms: tuple[str, ...] = CONVOLVES) -> Bad:
    return Bad(_of(*forms)(spoil), error, names)


def _unpack(**wrong: Any) -> Spoil:
    """The weight of a convolution, unpacked wrongly."""

    def spoil(case: Any, given: Inputs) -> Inputs:
        kept = {name: given[name] for name in ("packed_weight", "dim", "width")}
        return {"form": "unpack", **kept} | wrong

    return spoil


PACKED = ("packed", "packed_weight", "width", "dim")

BAD = {
    "pack_rank": _bad(_changed("weight", lambda w: w.reshape(-1)), ValueError, "weight", forms=("pack",)),
    "pack_middle": _bad(
        _changed("weight", lambda w: w.reshape(len(w), 1, -1).repeat(1, 2, 1)), ValueError, "weight", forms=("pack",)
    ),
    "pack_width_1": _bad(_changed("weight", lambda w: w[..., :1]), ValueError, "width", forms=("pack",)),
    "pack_width_5": _bad(_changed("weight", lambda w: w[..., :1].repeat_interleave(5, -1)), ValueError, "width", forms=("pack",)),
    "pack_integers": _bad(_changed("weight", lambda w: w.to(torch.int32)), TypeError, "weight", forms=("pack",)),
    "pack_nothing": _bad(_changed("weight", lambda w: w[:0]), ValueError, "dim", forms=("pack",)),
    "unpack_width": _bad(_unpack(width=5), ValueError, *PACKED),
    "unpack_dim": _bad(_unpack(dim=1000), ValueError, *PACKED),
    "width_5": _bad(_set(width=5), ValueError, *PACKED),
    "width_1": _bad(_set(width=1), ValueError, *PACKED),
    "width_other": _bad(
        lambda case, given: given | {"width": 6 - given["width"] if given["width"] != 3 else 2},
        ValueError,
        *PACKED,
        "conv_states",
    ),
    "dim_other": _bad(lambda case, given: given | {"dim": given["dim"] + 1}, ValueError, *PACKED, "x"),
    "weight_unpacked": _bad(
        lambda case, given: given | {"packed_weight": given["packed_weight"][:, 0, :, 0]}, ValueError, *PACKED
    ),
    "weight_plain": _bad(_set(plain=True), TypeError, "packed"),
    "weight_dtype": _bad(_changed("packed_weight", _other), TypeError, "x", *PACKED, "conv_states"),
    "weight_strides": _bad(_loose_weight, ValueError, *PACKED),
    "x_rank_3_with_offsets": _bad(lambda case, given: given | {"x": given["x"][None]}, ValueError, "x", forms=("varlen",)),
    "x_rank_2_without_offsets": _bad(_set(query_start_loc=None), ValueError, "x", forms=("varlen",)),
    "x_rank_4": _bad(lambda case, given: given | {"x": given["x"][None]}, ValueError, "x", forms=("batched",)),
    "x_rank_1": _bad(lambda case, given: given | {"x": given["x"].reshape(-1)}, ValueError, "x", forms=("update",)),
    "x_none": _bad(_set(x=None), TypeError, "x"),
    "x_integers": _bad(_changed("x", lambda x: x.nan_to_num().to(torch.int32)), TypeError, "x"),
    "states_none": _bad(_set(conv_states=None), TypeError, "conv_states", forms=("update",)),
    "states_columns": _bad(_changed("conv_states", _grown(2)), ValueError, "conv_states"),
    "states_channels": _bad(_changed("conv_states", _grown(1)), ValueError, "conv_states"),
    "states_rank": _bad(_changed("conv_states", lambda s: s[0]), ValueError, "conv_states"),
    "states_dtype": _bad(_changed("conv_states", _other), TypeError, "conv_states", "x", *PACKED),
    "states_strides": _bad(_loose_states, ValueError, "conv_states"),
    "states_overlap_x": _bad(_overlap, ValueError, "conv_states", "x", forms=("update",)),
    "states_overlap_themselves": _bad(_self_overlap, ValueError, "conv_states"),
    "bias_length": _bad(_changed("bias", _grown(0)), ValueError, "bias"),
    "bias_dtype": _bad(_changed("bias", lambda bias: bias.to(torch.float64)), TypeError, "bias"),
    "bias_rank": _bad(_changed("bias", lambda bias: bias[None]), ValueError, "bias"),
    "indices_without_states": _bad(_without_states("cache_indices"), ValueError, "cache_indices", forms=FORWARD),
    "initial_without_states": _bad(_without_states("has_initial_state"), ValueError, "has_initial_state", forms=FORWARD),
    "indices_length": _bad(_changed("cache_indices", _grown(0)), ValueError, "cache_indices"),
    "indices_float": _bad(_changed("cache_indices", lambda i: i.float()), TypeError, "cache_indices"),
    "index_negative": _bad(_index(-1), IndexError, "cache_indices"),
    "index_too_large": _bad(_index(0, beyond=True), IndexError, "cache_indices"),
    "index_huge": _bad(_index(2**30), IndexError, "cache_indices"),
    "index_duplicate": _bad(_duplicate, ValueError, "cache_indices"),
    "default_slots": _bad(_too_few_slots, ValueError, "conv_states"),
    "initial_length": _bad(_changed("has_initial_state", _grown(0)), ValueError, "has_initial_state", forms=FORWARD),
    "initial_integers": _bad(_changed("has_initial_state", lambda i: i.long()), TypeError, "has_initial_state", forms=FORWARD),
    "offsets_negative": _bad(_offsets(_put(0, -1)), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_beyond": _bad(_offsets(_put(-1, 1)), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_decreasing": _bad(_decreasing, ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_none_at_all": _bad(_offsets(lambda offsets, tokens: offsets[:0]), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_rank": _bad(_offsets(lambda offsets, tokens: offsets[None]), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_float": _bad(_offsets(lambda offsets, tokens: offsets.float()), TypeError, "query_start_loc", forms=("varlen",)),
}
