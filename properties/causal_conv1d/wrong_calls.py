"""Wrong calls of causal_conv1d: each error of the contract once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Alias, Inputs, WrongCall
from properties.causal_conv1d.batch import requests
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    Condition,
    Make,
    all_integers,
    all_negative,
    beside_wide,
    beyond_32_bits,
    changing,
    falling,
    larger,
    made,
    other_float,
    other_half,
    self_overlapping,
    setting,
    slot,
    slot_twice,
)

CONVOLVES = ("batched", "varlen", "update")
FORWARD = ("batched", "varlen")


def _convolves(case: Any) -> bool:
    return case.form in CONVOLVES


def _live_rows(case: Any, given: Inputs) -> list[int]:
    return [request.row for request in requests(given) if request.live] if _convolves(case) else []


def _slots(given: Inputs) -> int:
    return len(given["conv_states"])


def _too_few_slots(case: Any, given: Inputs) -> Inputs | None:
    if given["conv_states"] is None or given["cache_indices"] is not None or not requests(given):
        return None
    return given | {"conv_states": given["conv_states"][: len(requests(given)) - 1]}


def _offsets(change: Callable[[Tensor, int], Tensor]) -> Make:
    def make(case: Any, given: Inputs) -> Inputs | None:
        offsets = given["query_start_loc"].clone()
        return given | {"query_start_loc": change(offsets, given["x"].shape[1])}

    return make


def _put(at: int, value: int) -> Callable[[Tensor, int], Tensor]:
    def change(offsets: Tensor, tokens: int) -> Tensor:
        offsets[at] = value if value < 0 else tokens + value
        return offsets

    return change


def _without_states(name: str) -> Make:
    def make(case: Any, given: Inputs) -> Inputs:
        count = len(requests(given))
        value = torch.zeros(count, dtype=torch.bool) if name == "has_initial_state" else torch.arange(count)
        both: Inputs = {"conv_states": None, "cache_indices": None, "has_initial_state": None}
        return given | both | {name: value}

    return lambda case, given: make(case, given) if case.form in FORWARD else None


def _loose_states(case: Any, given: Inputs) -> Inputs | None:
    """Neither channels nor columns dense."""
    states = given["conv_states"]
    if states is None or states.shape[1] < 2 or states.shape[2] < 2 or not states.numel():
        return None
    return given | {"conv_states": states.repeat_interleave(2, dim=2)[:, :, ::2]}


def _too_few_columns(case: Any, given: Inputs) -> Inputs | None:
    states = given["conv_states"]
    return None if states is None else given | {"conv_states": states[:, :, : case.width - 2].contiguous()}


def _loose_weight(case: Any, given: Inputs) -> Inputs:
    packed = given["packed_weight"]
    return given | {"packed_weight": packed.repeat_interleave(2, dim=3)[..., ::2]}


def fewest_channels(dim: int) -> int:
    """As few as fill as many blocks of 32 of a packed weight."""
    return (dim - 1) // 32 * 32 + 1


def _same_blocks(case: Any, given: Inputs) -> Inputs | None:
    fewest = fewest_channels(given["dim"])
    return given | {"dim": fewest} if fewest < given["dim"] else None


def _overlap(case: Any, given: Inputs) -> Inputs | None:
    """x lies inside the state."""
    states = given["conv_states"]
    rows = len(given["x"])
    if states is None or given["form"] != "update" or not given["x"].numel() or rows > len(states):
        return None
    return given | {"x": Alias("conv_states", lambda tensor: tensor[:rows, :, 0])}


def _wrong(make: Make, error: type[Exception], *names: str, forms: tuple[str, ...] = CONVOLVES) -> WrongCall:
    return made(make, error, *names, when=lambda case: case.form in forms)


def _unpack(blocks: int = 0, **wrong: Any) -> Make:
    """The weight of a convolution, unpacked wrongly: some blocks of 32 channels too many, or another width."""

    def make(case: Any, given: Inputs) -> Inputs:
        kept = {name: given[name] for name in ("packed_weight", "dim", "width")}
        return {"form": "unpack", **kept, "dim": given["dim"] + 32 * blocks} | wrong

    return make


PACKED = ("packed", "packed_weight", "width", "dim")


def weight_calls(when: Condition) -> dict[str, WrongCall]:
    """A packed weight that does not fit the call, or is none."""

    def wrong(make: Make, error: type[Exception], *names: str) -> WrongCall:
        return made(make, error, *names, when=when)

    return {
        "width_5": wrong(setting(width=5), ValueError, *PACKED, "conv_states"),
        "width_1": wrong(setting(width=1), ValueError, *PACKED, "conv_states"),
        "width_other": wrong(
            lambda case, given: given | {"width": 6 - given["width"] if given["width"] != 3 else 2},
            ValueError,
            *PACKED,
            "conv_states",
        ),
        "dim_other": wrong(lambda case, given: given | {"dim": given["dim"] + 1}, ValueError, *PACKED, "x"),
        "dim_of_the_same_blocks": wrong(_same_blocks, ValueError, *PACKED, "x"),
        "weight_unpacked": wrong(
            lambda case, given: given | {"packed_weight": given["packed_weight"][:, 0, :, 0]}, ValueError, *PACKED
        ),
        "weight_plain": wrong(setting(plain=True), TypeError, "packed"),
        "weight_tag": wrong(setting(tag="rows"), ValueError, "packed", "layout"),
        "weight_dtype": wrong(changing("packed_weight", other_float), TypeError, "x", *PACKED, "conv_states"),
        "weight_strides": wrong(_loose_weight, ValueError, *PACKED),
    }


STATES = ("conv_states", "cache_indices", "has_initial_state")
BATCH = ("x", "query_start_loc")  # which say how many requests there are, too
WRONG_CALLS = {
    "pack_rank": _wrong(changing("weight", lambda w: w.reshape(-1)), ValueError, "weight", forms=("pack",)),
    "pack_middle": _wrong(
        changing("weight", lambda w: w.reshape(len(w), 1, -1).repeat(1, 2, 1)), ValueError, "weight", forms=("pack",)
    ),
    "pack_width_1": _wrong(changing("weight", lambda w: w[..., :1]), ValueError, "weight", "width", forms=("pack",)),
    "pack_width_5": _wrong(
        changing("weight", lambda w: w[..., :1].repeat_interleave(5, -1)), ValueError, "weight", "width", forms=("pack",)
    ),
    "pack_integers": _wrong(changing("weight", lambda w: w.to(torch.int32)), TypeError, "weight", forms=("pack",)),
    "pack_nothing": _wrong(changing("weight", lambda w: w[:0]), ValueError, "weight", "dim", forms=("pack",)),
    "unpack_width": _wrong(_unpack(width=5), ValueError, *PACKED),
    "unpack_dim": _wrong(_unpack(blocks=1), ValueError, *PACKED),
    **weight_calls(_convolves),
    "x_rank_3_with_offsets": _wrong(lambda case, given: given | {"x": given["x"][None]}, ValueError, "x", forms=("varlen",)),
    "x_rank_2_without_offsets": _wrong(setting(query_start_loc=None), ValueError, "x", forms=("varlen",)),
    "x_rank_4": _wrong(lambda case, given: given | {"x": given["x"][None]}, ValueError, "x", forms=("batched",)),
    "x_rank_1": _wrong(lambda case, given: given | {"x": given["x"].reshape(-1)}, ValueError, "x", forms=("update",)),
    "x_none": _wrong(setting(x=None), TypeError, "x"),
    "x_integers": beside_wide(
        _wrong(changing("x", lambda x: x.nan_to_num().to(torch.int32)), TypeError, "x", *PACKED, "conv_states"), "bias"
    ),
    "all_integers": beside_wide(all_integers("x", "packed_weight", "conv_states", when=_convolves), "bias"),
    "states_none": _wrong(setting(conv_states=None), TypeError, "conv_states", forms=("update",)),
    "states_columns": _wrong(_too_few_columns, ValueError, "conv_states"),
    "states_channels": _wrong(changing("conv_states", larger(1)), ValueError, "conv_states"),
    "states_rank": _wrong(changing("conv_states", lambda s: s.flatten(0, 1)), ValueError, "conv_states"),
    "states_dtype": _wrong(changing("conv_states", other_float), TypeError, "conv_states", "x", *PACKED),
    "states_strides": _wrong(_loose_states, ValueError, "conv_states"),
    "states_overlap_x": _wrong(_overlap, ValueError, "conv_states", "x", forms=("update",)),
    "states_overlap_themselves": self_overlapping("conv_states", when=_convolves),
    "bias_length": _wrong(changing("bias", larger(0)), ValueError, "bias"),
    "bias_dtype": _wrong(changing("bias", lambda bias: bias.to(torch.float64)), TypeError, "bias"),
    "bias_other_half": other_half("bias", when=_convolves),
    "bias_rank": _wrong(changing("bias", lambda bias: bias[None]), ValueError, "bias"),
    "indices_without_states": _wrong(_without_states("cache_indices"), ValueError, *STATES, forms=FORWARD),
    "initial_without_states": _wrong(_without_states("has_initial_state"), ValueError, *STATES, forms=FORWARD),
    "indices_length": _wrong(changing("cache_indices", larger(0)), ValueError, "cache_indices", *BATCH),
    "indices_float": _wrong(changing("cache_indices", lambda i: i.float()), TypeError, "cache_indices"),
    "index_negative": slot("cache_indices", _live_rows, -1),
    "all_negative": all_negative("cache_indices", _live_rows),
    "index_too_large": slot("cache_indices", _live_rows, 0, _slots),
    "index_huge": slot("cache_indices", _live_rows, 2**30),
    "index_duplicate": slot_twice("cache_indices", _live_rows),
    "default_slots": _wrong(_too_few_slots, ValueError, *STATES, *BATCH),
    "initial_length": _wrong(
        changing("has_initial_state", larger(0)), ValueError, "has_initial_state", *BATCH, forms=FORWARD
    ),
    "initial_integers": _wrong(changing("has_initial_state", lambda i: i.long()), TypeError, "has_initial_state", forms=FORWARD),
    "offsets_negative": _wrong(_offsets(_put(0, -1)), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_beyond": _wrong(_offsets(_put(-1, 1)), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_decreasing": falling("query_start_loc"),
    "offsets_none_at_all": _wrong(
        _offsets(lambda offsets, tokens: offsets[:0]), ValueError, "query_start_loc", forms=("varlen",)
    ),
    "offsets_rank": _wrong(_offsets(lambda offsets, tokens: offsets[None]), ValueError, "query_start_loc", forms=("varlen",)),
    "offsets_float": _wrong(_offsets(lambda offsets, tokens: offsets.float()), TypeError, "query_start_loc", forms=("varlen",)),
    "indices_over_states": laid_over(("conv_states",), ("cache_indices",)),
    "laid_over": laid_over(
        ("conv_states",), ("x", "packed_weight", "bias", "query_start_loc", "cache_indices", "has_initial_state")
    ),
    "query_start_loc_beyond_32_bits": beyond_32_bits("query_start_loc", ValueError),
}
