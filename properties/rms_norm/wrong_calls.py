"""rms_norm: calls that both sides refuse."""

import torch

from kernelpair.contract.pair import Inputs
from properties.rms_norm.cases import NormCase
from properties.shared.laid_over import laid_over
from properties.shared.wrong_calls import (
    NO_SCALES,
    aliased,
    all_integers,
    beside_wide,
    cast,
    changed,
    grown,
    made,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    replaced_each,
    self_overlapping,
    setting,
    sparse,
)


def _has_residual(case: NormCase) -> bool:
    return case.form == "residual"


def _has_gate(case: NormCase) -> bool:
    return case.form == "gate"


def _other(case: NormCase, given: Inputs) -> Inputs:
    """The one of residual and gate that is not there."""
    missing = "gate" if case.form == "residual" else "residual"
    return given | {missing: given["x"].clone()}


def _in_five_dimensions(case: NormCase, given: Inputs) -> Inputs:
    """x, and what has its shape."""
    whole = {name: given[name] for name in ("x", "residual", "gate") if given[name] is not None}
    return given | {name: value.reshape(*(1,) * (5 - value.dim()), *value.shape) for name, value in whole.items()}


def _between(case: NormCase, given: Inputs) -> Inputs:
    return given | {"group_size": case.columns + 1}


WRONG_CALLS = {
    "x_five_dimensions": made(_in_five_dimensions, ValueError, "x", "residual", "gate"),
    "x_no_dimension": changed("x", lambda x: x.new_ones(()), ValueError, "residual", "gate", "weight"),
    "x_integers": cast("x", torch.int64, "residual", "gate", "weight"),
    "all_integers": beside_wide(all_integers("x", "residual", "gate"), "weight"),
    "x_strides": sparse("x"),
    "x_none": replaced("x", None, TypeError),
    "residual_rows": grown("residual", 0, "x", when=_has_residual),
    "residual_width": grown("residual", -1, "x", when=_has_residual),
    "residual_rank": one_rank_more("residual", when=_has_residual),
    "residual_dtype": other_dtype("residual", "x", when=_has_residual),
    "residual_strides": sparse("residual", when=_has_residual),
    "residual_overlaps_itself": self_overlapping("residual", when=lambda case: _has_residual(case) and len(case.outer) > 0),
    "x_overlaps_itself": self_overlapping("x", when=lambda case: case.in_place and len(case.outer) > 0),
    "residual_is_x": aliased("residual", "x", when=_has_residual),
    "gate_rows": grown("gate", 0, "x", when=_has_gate),
    "gate_width": grown("gate", -1, "x", when=_has_gate),
    "gate_dtype": other_dtype("gate", "x", when=_has_gate),
    "gate_strides": sparse("gate", when=_has_gate),
    "residual_and_gate": made(_other, ValueError, "residual", "gate", when=lambda case: case.form != "plain"),
    "weight_length": grown("weight", 0, "x"),
    "weight_rank": one_rank_more("weight"),
    "weight_float64": cast("weight", torch.float64),
    "weight_number": replaced("weight", 7, TypeError),
    "gemma_without_weight": made(setting(gemma=True, weight=None), ValueError, "gemma", "weight"),
    "group_size_zero": replaced("group_size", 0, ValueError),
    "group_size_negative": replaced("group_size", -1, ValueError),
    "group_size_between": made(_between, ValueError, "group_size", when=lambda case: case.columns > 0),
    "group_size_half": replaced("group_size", 1.5, TypeError),
    **replaced_each("eps", NO_SCALES),
    "laid_over": laid_over(("residual",), ("x", "weight")),
    "laid_over_x": laid_over(("x",), ("gate", "weight"), when=lambda case: case.in_place),
    "weight_other_half": other_half("weight"),
}
