"""causal_conv1d: how far a result may be from the truth."""

import torch

import reference.causal_conv1d
from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.causal_conv1d.batch import requests, through_silu
from properties.causal_conv1d.cases import ConvCase, apply_reference
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error, rounding


def bound(case: ConvCase, given: Inputs, truth: Outputs) -> Bound:
    """|error| <= u |ref| + c d + [SiLU] 2^-17 |ref| + t(w + sum (|W| + |x|)), d = g(w + 2) (sum |W x| + |bias|).

    A float32 sum of w products and a bias errs by g(w + 2) against the sum of their sizes: d. SiLU passes it on with its slope,
    c <= 1.1, and left of zero at most that of (1 - y) e^y, which grows with y; it adds 2^-17 of its own (exp and a reciprocal).
    The result is rounded once; w + 1 operands and products below 2^-126 may be flushed. Zero, hence exact: rows that nobody
    computes, and states, which are copied.
    """
    dtype = getattr(torch, case.dtype)
    if case.form == "pack":
        return {}
    if case.exact:
        return {"out": rounding(truth["out"], dtype)}
    weight = reference.causal_conv1d.causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"])
    plain = given | {"silu_activation": False, "conv_states": None, "bias": None}
    sizes = plain | {
        name: value.abs() for name, value in given.items() if name in ("x", "bias", "conv_states") and value is not None
    }
    pack = reference.causal_conv1d.causal_conv1d_pack_weight
    terms = apply_reference(**sizes | {"packed_weight": pack(weight.abs())})
    sizes |= {"bias": None, "conv_states": None if given["conv_states"] is None else given["conv_states"].abs()}
    operands = apply_reference(**sizes | {"packed_weight": pack(torch.ones_like(weight))})
    taps = weight.abs().sum(1).unsqueeze(1) if case.form in ("batched", "varlen") else weight.abs().sum(1)
    out = truth["out"].abs()
    error, moved = UNIT_ROUNDOFF[dtype] * out, accumulation_error(case.width + 2) * terms
    if given["silu_activation"]:
        states = given.get("conv_states")
        linear = given | {"silu_activation": False, "conv_states": None if states is None else states.clone()}
        error = error + (2.0**-17 * out + through_silu(apply_reference(**linear), moved))
    else:
        error = error + moved
    error = error + flush_error(case.width + taps + operands, dtype)
    computed = torch.zeros_like(out, dtype=torch.bool)
    for request in requests(given):
        if request.live:
            request.of(computed).fill_(True)
    return {"out": error * computed}
