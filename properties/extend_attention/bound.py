"""extend_attention: how far a result may be from the truth."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.extend_attention.cases import ExtendAttentionCase
from properties.shared import attention_values as numbers
from properties.shared.attention_bound import attention_bound, drawn_apart

SCORES_AT_ONCE = 1 << 19  # of the bound, which holds ten matrices of that size


# --- bound ---


@dataclass(frozen=True)
class RequestRows:
    """Some rows of one request, and the keys that they see."""

    rows: slice
    keys: Tensor
    values: Tensor
    visible: Tensor | None
    apart: bool
    """Whether the generator drew each of the values."""


def rows_of(given: Inputs) -> Iterator[RequestRows]:
    """Every request, in pieces of few rows."""
    names = ("req_pool_indices", "seq_lens", "extend_seq_lens", "extend_start_loc")
    W, H, cross = given["sliding_window"], given["q"].shape[1], given["is_cross_attn"]
    encoder = given["encoder_lens"]
    for b, (pool, L, E, s) in enumerate(zip(*(given[name].tolist() for name in names))):
        if not E:
            continue
        off = 0 if encoder is None else int(encoder[b])
        first = 0 if cross or W <= 0 else max(0, L - E - W + 1)
        columns = range(off) if cross else range(off + min(first, L - E), off + L - E)
        slots = given["req_to_token"][pool, columns.start : columns.stop].long()
        keys, values = given["k_cache"][slots], given["v_cache"][slots]
        apart = cross or drawn_apart(given["v"][s : s + E])
        if not cross:
            fresh_k, fresh_v = given["k"][s : s + E], given["v"][s : s + E]
            keys = torch.cat([keys, fresh_k]) if len(slots) else fresh_k
            values = torch.cat([values, fresh_v]) if len(slots) else fresh_v
        step = max(1, SCORES_AT_ONCE // max(1, H * len(keys)))
        for i in range(0, E, step):
            last = min(i + step, E)
            visible = None
            if not cross:
                p = torch.arange(L - E + i, L - E + last)[:, None]
                j = torch.arange(L - len(keys), L)[None]
                visible = (j <= p) & ((j > p - W) if W > 0 else True)
            yield RequestRows(slice(s + i, s + last), keys, values, visible, apart)


def bound(case: ExtendAttentionCase, inputs: Inputs, truth: Outputs) -> Bound:
    """Numerics (A), request by request."""
    dtype, result = getattr(torch, case.dtype), torch.zeros_like(truth["out"])
    for piece in rows_of(inputs):
        result[piece.rows] = attention_bound(
            inputs["q"][piece.rows], piece.keys, piece.values, piece.visible, dtype=dtype, sm_scale=inputs["sm_scale"],
            logit_cap=inputs["logit_cap"], sinks=inputs["sinks"], random_signs=piece.apart,
        )
    return {"out": result}


ours = numbers.divided_last(bound)
