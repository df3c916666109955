"""int8_linear: calls that both sides refuse."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs
from properties.int8_linear.cases import Int8Case
from properties.shared.wrong_calls import (
    any_of,
    cast,
    changed,
    entry,
    grown,
    made,
    one_rank_more,
    replaced,
    setting,
    sparse,
    with_gaps,
)


def _matmul(case: Any) -> bool:
    return bool(case.form == "matmul")


def _linear(case: Any) -> bool:
    return bool(case.form == "linear")


def _one_point(value: int) -> Any:
    return entry("azp", lambda case, given: (any_of(case, range(len(given["azp"]))), value), ValueError, when=_matmul)


def _raw_weight(case: Int8Case, given: Inputs) -> Inputs:
    return given | {"data": torch.ones(case.N, case.K, dtype=torch.int8), "layout": None}


def _too_wide(case: Int8Case, given: Inputs) -> Inputs | None:
    """One column more than sums have room for, in the weight and in the rows."""
    name, columns = "x" if _linear(case) else "q", 2**16 + 1
    data, rows = given["data"], given[name]
    if len(data) > 2 or rows.shape[:-1].numel() > 16:
        return None
    wide = data.new_zeros(len(data), -(-columns // 64), *data.shape[2:])
    return given | {"data": wide, "K": columns, name: rows.new_zeros(*rows.shape[:-1], columns)}


def _three_dimensions(case: Int8Case, given: Inputs) -> Inputs | None:
    """q with as many entries in its first dimension as there are scales."""
    return None if given.get("q") is None else given | {"q": given["q"][:, None]}


def _more(name: str, by: int) -> Any:
    return lambda case, given: given | {name: given[name] + by}


OF_N, OF_K = ("N", "data", "sums", "w_scale", "bias"), ("K", "data", "x", "q")  # what has a size that goes by it
WRONG_CALLS = {
    "x_columns": grown("x", -1, "K"),
    "x_integers": cast("x", torch.int8),
    "x_strides": sparse("x"),
    "x_none": replaced("x", None, TypeError, when=_linear),
    "x_scalar": changed("x", lambda x: x.new_zeros(()), ValueError),
    "q_columns": grown("q", 1, "K"),
    "q_unsigned": cast("q", torch.uint8),
    "q_rank": made(_three_dimensions, ValueError, "q"),
    "q_strides": sparse("q"),
    "scale_length": grown("scale", 0, "q"),
    "scale_dtype": cast("scale", torch.bfloat16),
    "scale_rank": one_rank_more("scale"),
    "scale_none": replaced("scale", None, TypeError, when=_matmul),
    "azp_length": grown("azp", 0, "q"),
    "azp_dtype": cast("azp", torch.int64),
    "azp_below": _one_point(-129),
    "azp_above": _one_point(128),
    "out_integers": replaced("out_dtype", "int32", TypeError, when=_matmul),
    "out_none": replaced("out_dtype", None, TypeError, when=_matmul),
    "data_rank": changed("data", lambda data: data.flatten(4), ValueError),
    "data_floats": cast("data", torch.float32),
    "data_N": made(_more("N", 32), ValueError, *OF_N),
    "K_too_large": made(_too_wide, ValueError, "K"),
    "data_K": made(_more("K", 64), ValueError, *OF_K),
    "N_zero": made(setting(N=0), ValueError, *OF_N),
    "sums_length": grown("sums", 0, "N"),
    "sums_dtype": cast("sums", torch.int64),
    "weight_raw": made(_raw_weight, TypeError, "packed"),
    "weight_packed_but_plain": made(setting(layout=None), TypeError, "packed"),
    "layout_unknown": made(setting(layout="vnni2-n32k32"), ValueError, "layout"),
    "w_scale_length": grown("w_scale", 0),
    "w_scale_dtype": cast("w_scale", torch.float16),
    "w_scale_none": replaced("w_scale", None, TypeError),
    "bias_length": made(lambda case, given: given | {"bias": torch.zeros(case.N + 1)}, ValueError, "bias"),
    "bias_rank": made(lambda case, given: given | {"bias": torch.zeros(1, case.N)}, ValueError, "bias"),
    "bias_integers": made(lambda case, given: given | {"bias": torch.zeros(case.N, dtype=torch.int32)}, TypeError, "bias"),
    "data_gaps": with_gaps("data"),
}
