"""fp8_linear: calls that both sides refuse."""

from typing import Any

import torch

from properties.fp8_linear.cases import LAYOUT
from properties.shared.wrong_calls import cast, changed, grown, made, one_rank_more, replaced, setting


def _more(name: str, by: int) -> Any:
    return lambda case, given: given | {name: given[name] + by}


WRONG_CALLS = {
    "x_columns": grown("x", -1, "K"),
    "x_integers": cast("x", torch.int32),
    "x_float8": cast("x", torch.float8_e4m3fn),
    "x_scalar": changed("x", lambda x: x.new_zeros(()), ValueError),
    "x_none": replaced("x", None, TypeError),
    "data_rank": changed("data", lambda data: data.flatten(4), ValueError),
    "data_floats": cast("data", torch.float32),
    "data_float8": cast("data", torch.float8_e4m3fn),
    "data_N": made(_more("N", 32), ValueError, "data", "N", "scales"),
    "data_K": made(_more("K", 32), ValueError, "data", "K", "scales"),
    "N_zero": made(setting(N=0), ValueError, "N"),
    "K_negative": made(setting(K=-1), ValueError, "K"),
    "scales_outputs": grown("scales", 0),
    "scales_columns": grown("scales", 1),
    "scales_rank": one_rank_more("scales"),
    "scales_dtype": cast("scales", torch.bfloat16),
    "scales_none": replaced("scales", None, TypeError),
    "block_n_zero": replaced("block_n", 0, ValueError),
    "block_k_zero": replaced("block_k", 0, ValueError),
    "weight_plain": made(setting(layout=None), TypeError, "packed"),
    "layout_unknown": made(setting(layout=LAYOUT.replace("e4m3", "e5m2")), ValueError, "layout"),
    "bias_length": made(lambda case, given: given | {"bias": torch.zeros(case.N + 1)}, ValueError, "bias"),
    "bias_rank": made(lambda case, given: given | {"bias": torch.zeros(1, case.N)}, ValueError, "bias"),
    "bias_integers": made(lambda case, given: given | {"bias": torch.zeros(case.N, dtype=torch.int32)}, TypeError, "bias"),
}
