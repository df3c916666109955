"""paged_attention: how far a result may be from the truth."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.paged_attention.cases import PagedAttentionCase
from properties.shared import attention_values as numbers
from properties.shared.attention_bound import attention_bound, drawn_apart

SCORES_AT_ONCE = 1 << 19  # of the bound, which holds ten matrices of that size


# --- bound ---


def rows_of(given: Inputs) -> Iterator[tuple[int, slice, Tensor, Tensor, Tensor, Tensor]]:
    """Every request, in pieces of few rows: request, rows of q, keys, values, visible, distance of each key from each row."""
    page, H = given["k_cache"].shape[1], given["q"].shape[1]
    left, right = min(given["window_left"], 2**62), 0 if given["causal"] else min(given["window_right"], 2**62)
    offsets = given["cu_seqlens_q"].tolist()
    for b, sk in enumerate(given["cache_seqlens"].tolist()):
        start, sq = offsets[b], offsets[b + 1] - offsets[b]
        low = max(0, sk - sq - left) if left >= 0 else 0
        if not sq or low >= sk:
            continue
        j = torch.arange(low, sk)
        pages = given["page_table"][b, j // page].long()
        keys, values = given["k_cache"][pages, j % page], given["v_cache"][pages, j % page]
        step = max(1, SCORES_AT_ONCE // (H * len(j)))
        for i in range(0, sq, step):
            last = min(i + step, sq)
            p = torch.arange(i, last)[:, None] + sk - sq
            visible = (j >= p - left) | (left < 0)
            visible &= (j <= p + right) | (right < 0)
            yield b, slice(start + i, start + last), keys, values, visible, j - p


def _pages_of(given: Inputs, b: int, count: int) -> Tensor:
    """The pages that hold the last `count` keys of a request."""
    page, sk = given["k_cache"].shape[1], int(given["cache_seqlens"][b])
    pages: Tensor = given["page_table"][b, (sk - count) // page : -(-sk // page)]
    return pages


def bound(case: PagedAttentionCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A), request by request."""
    dtype, result = getattr(torch, case.dtype), torch.zeros_like(truth["out"])
    qv = inputs["qv"]
    scale = inputs["softmax_scale"] or (inputs["q"].shape[2] + (0 if qv is None else qv.shape[2])) ** -0.5
    for b, rows, keys, values, visible, distance in rows_of(inputs):
        apart = not case.latent and drawn_apart(values, _pages_of(inputs, b, len(keys)))
        q = inputs["q"][rows] if qv is None else torch.cat([inputs["q"][rows], qv[rows]], dim=-1)
        keys = keys if qv is None else torch.cat([keys, values], dim=-1)
        if inputs["k_descale"] is not None:  # not in place: the next piece of the request gets the same keys
            keys = keys * inputs["k_descale"][b][:, None]
        if inputs["v_descale"] is not None:
            values = values * inputs["v_descale"][b][:, None]
        result[rows] = attention_bound(
            q, keys, values, visible, dtype=dtype, sm_scale=scale, logit_cap=inputs["softcap"], sinks=inputs["sinks"],
            splits=max(case.splits, 8), random_signs=apart, slopes=inputs["alibi_slopes"], distance=distance,
        )
    return {"out": result}


ours = numbers.divided_last(bound)
