"""flash_attn_varlen: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.flash_attn_varlen.cases import VarlenCase, is_causal, position
from properties.shared import attention_values as numbers
from properties.shared.attention_bound import attention_bound, drawn_apart

SCORES_AT_ONCE = 1 << 19  # of the bound, which holds ten matrices of that size


def bound(case: VarlenCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A), request by request."""
    dtype, result = getattr(torch, case.dtype), torch.zeros_like(truth["out"])
    scale = inputs["softmax_scale"] or case.width**-0.5
    starts, firsts = inputs["cu_seqlens_q"].tolist(), inputs["cu_seqlens_k"].tolist()
    for b, (lq, lk) in enumerate(zip(case.rows, case.lens)):
        own = slice(firsts[b], firsts[b] + lk)
        left, right = min(case.left, lq + lk), 0 if is_causal(case, b) else min(case.right, lq + lk)
        apart = drawn_apart(inputs["v"][own])
        step = max(1, SCORES_AT_ONCE // max(1, case.heads * lk))
        for i in range(0, lq if lk else 0, step):
            j, p = torch.arange(lk), torch.arange(i, min(i + step, lq))[:, None] + position(case, b)
            visible = ((j >= p - left) | (left < 0)) & ((j <= p + right) | (right < 0))
            rows = slice(starts[b] + i, starts[b] + i + len(p))
            result[rows] = attention_bound(
                inputs["q"][rows], inputs["k"][own], inputs["v"][own], visible, dtype=dtype, sm_scale=scale,
                logit_cap=case.cap, sinks=inputs["sinks"], random_signs=apart,
            )
    return {"out": result}


ours = numbers.divided_last(bound)
