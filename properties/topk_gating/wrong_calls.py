"""topk_gating: calls that both sides refuse."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs
from properties.shared.wrong_calls import (
    INF,
    NAN,
    beside_wide,
    cast,
    changed,
    grown,
    made,
    one_rank_more,
    other_float,
    other_half,
    replaced,
    sparse,
)


def _too_many(case: Any, given: Inputs) -> Inputs:
    return given | {"topk": case.kept * case.size + 1}


def _split(case: Any, given: Inputs) -> Inputs:
    return given | {"num_expert_group": case.experts + 1}


def _more_groups(case: Any, given: Inputs) -> Inputs:
    return given | {"topk_group": case.groups + 1}


def _groups_of_one(case: Any, given: Inputs) -> Inputs:
    kept = 1 if case.seed % 2 else case.experts
    return given | {"num_expert_group": case.experts, "topk_group": kept, "topk": min(case.topk, kept)}


def _rows_past(case: Any, given: Inputs) -> Inputs:
    return given | {"num_valid": case.tokens + 1}


def _other_bias(bias: torch.Tensor) -> torch.Tensor:
    return other_float(bias).to(torch.float64)


GROUPS = ("num_expert_group", "topk_group", "topk")  # fewer groups than one leave no room for those that stay, nor for topk
WRONG_CALLS = {
    "logits_rank": one_rank_more("logits"),
    "logits_integers": beside_wide(cast("logits", torch.int32), "correction_bias"),
    "logits_none": replaced("logits", None, TypeError),
    "logits_strides": sparse("logits"),
    "bias_length": grown("correction_bias", 0),
    "bias_rank": one_rank_more("correction_bias"),
    "bias_dtype": changed("correction_bias", _other_bias, TypeError),
    "bias_other_half": other_half("correction_bias"),
    "topk_zero": replaced("topk", 0, ValueError),
    "topk_negative": replaced("topk", -1, ValueError),
    "topk_too_large": made(_too_many, ValueError, "topk"),
    "topk_float": replaced("topk", 1.5, TypeError),
    "groups_zero": replaced("num_expert_group", 0, ValueError, *GROUPS),
    "groups_negative": replaced("num_expert_group", -1, ValueError, *GROUPS),
    "groups_split": made(_split, ValueError, *GROUPS),
    "kept_zero": replaced("topk_group", 0, ValueError, "topk_group", "topk"),
    "kept_too_many": made(_more_groups, ValueError, "topk_group"),
    "bias_in_groups_of_one": made(
        _groups_of_one, ValueError, "correction_bias", "num_expert_group",
        when=lambda case: case.bias != "none" and case.experts > 1,
    ),
    "scoring_unknown": replaced("scoring", "sqrtsoftplus", ValueError),
    "scoring_none": replaced("scoring", None, TypeError),
    "scaling_infinite": replaced("scaling_factor", INF, ValueError),
    "scaling_infinite_in_float32": replaced("scaling_factor", 2.0**103 - 2.0**128, ValueError),
    "scaling_nan": replaced("scaling_factor", NAN, ValueError),
    "scaling_too_large": replaced("scaling_factor", -1e39, ValueError),
    "valid_negative": replaced("num_valid", -1, ValueError),
    "valid_past_the_end": made(_rows_past, ValueError, "num_valid"),
}
