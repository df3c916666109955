"""packed_linear: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import ROUNDED_ONCE, Bound, Inputs, Outputs
from properties.packed_linear.cases import LinearCase
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error
from reference.pack_linear_weight import unpack_linear_weight


def bound(case: LinearCase, given: Inputs, truth: Outputs) -> Bound:
    """K products and a bias summed in float32 in any order, one rounding; flushed operands, products and results.

    With exact sums (small integers, one term) only the rounding is left: equality.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    x, weight = given["x"].abs(), unpack_linear_weight(given["packed_weight"], case.N, case.K).abs()
    if case.values == "integers" or (case.values != "uniform" and _one_term(x, weight)):
        return {"out": ROUNDED_ONCE}
    bias = given["bias"].abs() if given["bias"] is not None else 0.0
    size = x @ weight.T + bias
    terms = case.K + x.sum(-1, keepdim=True) + weight.sum(-1)
    rounding = UNIT_ROUNDOFF[dtype] * truth["out"].abs()
    return {"out": rounding + accumulation_error(case.K + 2) * size + flush_error(terms, dtype)}


def _one_term(x: Tensor, weight: Tensor) -> bool:
    """Whether no sum has more than one; a trial of wrong arguments may give one-hot rows another number."""
    return bool(((x != 0).double() @ (weight != 0).double().T <= 1).all())
