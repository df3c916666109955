"""packed_linear: calls that both sides refuse."""

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.packed_linear.cases import LinearCase, _weight
from properties.shared.wrong_calls import with_gaps

# --- wrong calls ---


def _other_dtype(case: LinearCase) -> torch.dtype:
    return torch.float16 if case.dtype == "bfloat16" else torch.bfloat16


def _wider(case: LinearCase, given: Inputs) -> Inputs:
    return given | {"x": given["x"].new_zeros(*case.outer, case.K + 1)}


WRONG_CALLS = {
    "x_columns": WrongCall(_wider, ValueError, ("x", "K")),
    "x_dtype": WrongCall(lambda case, given: given | {"x": given["x"].to(_other_dtype(case))}, TypeError, "x"),
    "x_integers": WrongCall(lambda case, given: given | {"x": given["x"].to(torch.int32)}, TypeError, "x"),
    "x_none": WrongCall(lambda case, given: given | {"x": None}, TypeError, "x"),
    "x_scalar": WrongCall(lambda case, given: given | {"x": torch.zeros((), dtype=given["x"].dtype)}, ValueError, "x"),
    "weight_rank": WrongCall(
        lambda case, given: given | {"packed_weight": given["packed_weight"].flatten(4)}, ValueError, "packed_weight"
    ),
    "weight_N": WrongCall(lambda case, given: given | {"N": case.N + 32}, ValueError, ("packed_weight", "N", "bias")),
    "weight_K": WrongCall(lambda case, given: given | {"K": case.K + 32}, ValueError, ("packed_weight", "K", "x")),
    "weight_size_zero": WrongCall(lambda case, given: given | {"N": 0}, ValueError, ("packed_weight", "N", "bias")),
    "weight_raw": WrongCall(
        lambda case, given: given | {"packed_weight": _weight(case, given["x"].dtype), "layout": None}, TypeError, "packed"
    ),
    "weight_packed_but_plain": WrongCall(lambda case, given: given | {"layout": None}, TypeError, "packed"),
    "layout_unknown": WrongCall(lambda case, given: given | {"layout": "vnni4-n16k64"}, ValueError, "layout"),
    "weight_none": WrongCall(lambda case, given: given | {"packed_weight": None}, TypeError, ("packed_weight", "packed")),
    "bias_length": WrongCall(lambda case, given: given | {"bias": torch.zeros(case.N + 1)}, ValueError, "bias"),
    "bias_rank": WrongCall(lambda case, given: given | {"bias": torch.zeros(1, case.N)}, ValueError, "bias"),
    "bias_integers": WrongCall(
        lambda case, given: given | {"bias": torch.zeros(case.N, dtype=torch.int64)}, TypeError, "bias"
    ),
    "packed_weight_gaps": with_gaps("packed_weight"),
}
