"""topk_gating: how far a weight may be from the truth, given the experts that were chosen."""

from functools import partial

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs, Within
from properties.shared.attention_bound import EXP_ERROR, accumulation_error
from properties.topk_gating.cases import TopkCase
from properties.topk_gating.selection import ROUND, STEP, TINY, judged_rows, scored, settle


def bound(case: TopkCase, given: Inputs, truth: Outputs, vanished: bool = True) -> Bound:
    """With m the row's maximum, rho' = 2^-18 + 2^-22 (1 + |z - m|) of a softmax, 2^-17 of a sigmoid, rho as in `scored`:

        renormalized: |dw| <= (rho'_i + max_j rho'_j + g(k + 2)) |w| + 2^-124 |scaling| / sum_j s_j
        else:         |dw| <= (rho + 2^-22) |w| + 2^-124 |scaling|

    A quotient of two scores does not know the sum over all experts: numerator and denominator err by rho' each, the sum of k
    scores and two more operations round. Otherwise a score errs by rho, and the product with the scale rounds; 2^-22 covers
    that and a product with the reciprocal. Scores below 2^-126 may be flushed. With `vanished` any weight is within the last
    term where float64 cannot hold their sum either, though a chosen logit is finite (the lowest number, with which others
    mask): a kernel may divide by the sum that it has, or give a softmax of the chosen logits alone. In a row in
    which n equal logits are all that a softmax has, exp(0) = 1 and the sums of ones are exact: 2^-23 |w| for the quotient and
    the product.
    """
    weights, scale = truth["weights"], abs(case.scaling)
    rows = judged_rows(given)
    found = scored(given, rows)
    ids = truth["ids"][rows].long()
    limit = torch.zeros_like(weights)
    w, s = weights[rows].abs(), found.scores.gather(1, ids)
    moved = torch.full_like(w, 2 * EXP_ERROR) if case.scoring == "sigmoid" else EXP_ERROR + STEP * found.distance.gather(1, ids)
    if case.renormalize:
        total = s.sum(-1, keepdim=True)
        some = given["logits"][rows].gather(1, ids).amax(-1, keepdim=True) > -torch.inf if vanished else total > 0
        flushed = torch.where(some, 2 * TINY * scale / total.clamp_min(1e-300), 0.0)
        limit[rows] = (moved + moved.amax(-1, keepdim=True) + accumulation_error(case.topk + 2)) * w + flushed
    else:
        rho = 2 * EXP_ERROR if case.scoring == "sigmoid" else moved + EXP_ERROR + accumulation_error(case.experts)
        limit[rows] = (rho + STEP) * w + 2 * TINY * scale
    even = _of_equal_logits(given) & rows
    if case.scoring == "softmax" and bool(even.any()):
        limit[even] = ROUND * weights[even].abs()
    return {"weights": limit}


def _of_equal_logits(given: Inputs) -> Tensor:
    """[T]: the rows whose logits are all one number or -inf."""
    logits = given["logits"]
    return ((logits == logits.amax(-1, keepdim=True)) | (logits == -torch.inf)).all(-1)


ours = partial(bound, vanished=False)  # weights of 0, as the contract says of a sum that is 0
ANY_ORDER = "of equal ones any is chosen"
TRUTH = Within(
    bound,
    ours=ours,
    settle=settle,
    settle_ours=partial(settle, rising=True),
    roundings={ANY_ORDER: Within(bound, settle=partial(settle, ties=False))},
)
