"""linear_modules: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import ROUNDED_ONCE, Bound, Inputs, Outputs, RoundedOnce
from properties.scenarios.linear_modules.cases import LinearModulesCase
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error


def bound(case: LinearModulesCase, given: Inputs, truth: Outputs) -> Bound:
    """Of packed_linear: K products and a bias in float32, one rounding. What is packed comes back bit for bit."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    x, weight = given["x"].abs(), given["weight"].abs()
    size = x @ weight.T + (0.0 if given["bias"] is None else given["bias"].abs())
    terms = case.K + x.sum(-1, keepdim=True) + weight.sum(-1)
    error = accumulation_error(case.K + 2) * size + flush_error(terms, dtype)
    exact: dict[str, Tensor | RoundedOnce] = {name: ROUNDED_ONCE for name in ("weight", "other", "bias") if name in truth}
    return {"out": UNIT_ROUNDOFF[dtype] * truth["out"].abs() + error, **exact}
