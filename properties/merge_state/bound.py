"""merge_state: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.merge_state.cases import MergeCase
from properties.shared.attention_bound import EXP_ERROR, SMALLEST_NORMAL, UNIT_ROUNDOFF, flush_error

ROUND = 2.0**-24


def weights(given: Inputs) -> tuple[Tensor, Tensor]:
    """[T, H] each: shares of the two parts, 0 for one without keys."""
    both = torch.stack([given["lse_a"], given["lse_b"]])
    top = both.amax(0)
    shares = torch.exp(both - top.masked_fill(top == -torch.inf, 0.0))
    share_a, share_b = shares / shares.sum(0).clamp_min(1.0)
    return share_a, share_b


def bound(case: MergeCase, given: Inputs, truth: Outputs) -> Bound:
    """With the shares w of the parts, d = |lse_a - lse_b|, e = 2^-18 + 2^-23 d, w' = min(w_a, w_b), A = w_a |v_a| + w_b |v_b|:

        |dout| <= u |out| + e w' (|v_a| + |v_b|) + 6 2^-24 A + t(|v_a| + |v_b|)
        |dlse| <= 2^-24 (1 + 2^-18) |lse| + e w' + 2^-18 log(1 + exp(-d)) + 2^-24 + 2^-126

    The larger weight is exp(0) = 1. The smaller one is off by e of itself (exp, and the rounded difference of the two lse),
    which moves each share by at most e w', and lse by e w'. Sum, quotients, products and their sum round six times in all; the
    logarithm errs by 2^-18; its argument, a sum between 1 and 2, was rounded by 2^-24, which moves it by no more, and lse is
    rounded once. Where a part is empty nothing is computed.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    share_a, share_b = weights(given)
    alone = (given["lse_a"] == -torch.inf) | (given["lse_b"] == -torch.inf)
    size_a = given["v_a"].abs().masked_fill((given["lse_a"] == -torch.inf)[..., None], 0.0)
    size_b = given["v_b"].abs().masked_fill((given["lse_b"] == -torch.inf)[..., None], 0.0)
    gap = (given["lse_a"] - given["lse_b"]).abs().masked_fill(alone, 0.0)
    moved = (EXP_ERROR + 2 * ROUND * gap) * torch.minimum(share_a, share_b)
    mixed = share_a[..., None] * size_a + share_b[..., None] * size_b
    out = UNIT_ROUNDOFF[dtype] * truth["out"].abs() + moved[..., None] * (size_a + size_b) + 6 * ROUND * mixed
    out = out + flush_error(size_a + size_b, dtype)
    log = torch.log1p(torch.exp(-gap))
    lse = ROUND * truth["lse"].abs() * (1 + EXP_ERROR) + moved + EXP_ERROR * log + ROUND + SMALLEST_NORMAL
    return {"out": out.masked_fill(alone[..., None], 0.0), "lse": lse.masked_fill(alone, 0.0)}
