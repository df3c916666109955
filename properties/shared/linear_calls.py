"""Wrong calls that the linear layers share whose weight is packed with scales of its own, and given in its parts."""

from typing import Any

import torch

from kernelpair.contract.pair import WrongCall
from properties.shared.wrong_calls import Make, cast, changed, grown, made, replaced, setting


def more(name: str, by: int) -> Make:
    """A number that is larger by this."""
    return lambda case, given: given | {name: given[name] + by}


def _bias(make: Any) -> Make:
    return lambda case, given: given | {"bias": make(case)}


OF_N, OF_K = ("N", "data", "scales", "zeros"), ("K", "data", "scales", "zeros", "x")  # what has a size that goes by it


def wrong_calls(layout: str) -> dict[str, WrongCall]:
    """`layout`: a name that the weight's does not have."""
    return {
        "x_columns": grown("x", -1, "K"),
        "x_integers": cast("x", torch.int32),
        "x_float8": cast("x", torch.float8_e4m3fn),
        "x_scalar": changed("x", lambda x: x.new_zeros(()), ValueError),
        "x_none": replaced("x", None, TypeError),
        "data_rank": changed("data", lambda data: data.flatten(3), ValueError),
        "data_floats": cast("data", torch.float32),
        "data_float8": cast("data", torch.float8_e4m3fn),
        "data_N": made(more("N", 32), ValueError, *OF_N, "bias"),
        "data_K": made(more("K", 32), ValueError, *OF_K),
        "N_zero": made(setting(N=0), ValueError, *OF_N, "bias"),
        "K_negative": made(setting(K=-1), ValueError, *OF_K),
        "scales_none": replaced("scales", None, TypeError),
        "scales_dtype": cast("scales", torch.bfloat16),
        "weight_plain": made(setting(layout=None), TypeError, "packed"),
        "layout_unknown": made(setting(layout=layout), ValueError, "layout"),
        "bias_length": made(_bias(lambda case: torch.zeros(case.N + 1)), ValueError, "bias"),
        "bias_rank": made(_bias(lambda case: torch.zeros(1, case.N)), ValueError, "bias"),
        "bias_integers": made(_bias(lambda case: torch.zeros(case.N, dtype=torch.int32)), TypeError, "bias"),
    }
