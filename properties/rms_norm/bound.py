"""rms_norm: how far a result may be from the truth."""

import torch
from torch import Tensor

from kernelpair.contract.pair import Bound, Inputs, Outputs
from properties.rms_norm.cases import NormCase
from properties.shared.attention_bound import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    accumulation_error,
    flush_error,
    rounding,
)
from reference.rms_norm import rms_norm

SILU_ERROR = 2.0**-17
TWO_SUMS = "the root of one sum of x and residual beside the other sum"
"""A rounding that is forbidden (`Within.roundings`)."""


def _relative(case: NormCase, given: Inputs) -> float:
    """c = g(n + 2) / 2 + 2^-21 of groups of n: what is relative to the result, but for its own rounding and the gate. Where the
    sum of squares is exact, g(2) stands for g(n + 2)."""
    group = given["group_size"] or given["x"].shape[-1]
    return accumulation_error(2 + (group if case.exact < 0 else 0)) / 2 + 2.0**-21


def _factors(given: Inputs, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r, W and G of every element; 1 where there is none."""
    D = s.shape[-1]
    size = given["group_size"] or max(D, 1)
    r = 1 / (s.square().unflatten(-1, (D // size, size)).mean(-1) + given["eps"]).sqrt()
    weight, gate = given["weight"], given["gate"]
    W = s.new_ones(D) if weight is None else weight + float(given["gemma"])
    G = s.new_ones(D) if gate is None else gate / (1 + torch.exp(-gate))
    return r.repeat_interleave(size, -1), W, G


def bound(case: NormCase, given: Inputs, truth: Outputs) -> Bound:
    """With c = g(n + 2) / 2 + 2^-21 for groups of n, s the sum that is normalised, W and G the factors:

        |do| <= (u + c + [gate] 2^-17 + [residual, 16 bits] 2 u) |o| + [gate] 2^-126 (128 + |gate|) |s r W|
                + t((1 + r) (1 + |W|) (1 + |G|))

    n squares of one sign and n additions err by g(n) of their sum, the mean and the sum with eps by two roundings more; the root
    halves all that. Root, reciprocal and three products round once each: 5 2^-24, and 2^-21 leaves room for an estimate of the
    root that was refined. silu errs by 2^-17, and flushes. The truth is that of the sum x + residual before it is rounded; a
    kernel may take the rounded one, which differs by u in s and, at worst, u in r (`aggregate` looks at it more closely).
    Where all is exact (`NormCase.exact`) a result of 16 bits is rounded once, and one of float32 has no error of a sum. residual
    is one sum in float32 and one cast: where that is not the truth rounded once, either passes. A bfloat16 alone may be flushed.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    s, result, out = given["x"], dict[str, Tensor](), truth[case.result]
    relative = UNIT_ROUNDOFF[dtype] + _relative(case, given)
    if given["residual"] is not None:
        stored = _stored(given, dtype)
        flushed = SMALLEST_NORMAL if dtype == torch.bfloat16 else 0.0
        result["residual"] = (stored - truth["residual"]).abs() + flushed
        s = s + given["residual"]
        relative += 2 * UNIT_ROUNDOFF[dtype] if dtype != torch.float32 else 0.0
    if case.exact >= 0 and dtype != torch.float32:
        return result | {case.result: rounding(out, dtype)}
    if not s.numel():
        return result | {case.result: out.abs()}
    r, W, G = _factors(given, s)
    absolute = flush_error((1 + r) * (1 + W.abs()) * (1 + G.abs()), dtype)
    if given["gate"] is not None:
        relative += SILU_ERROR
        absolute = absolute + SMALLEST_NORMAL * (128 + given["gate"].abs()) * (s * r * W).abs()
    return result | {case.result: relative * out.abs() + absolute}


def _stored(given: Inputs, dtype: torch.dtype) -> Tensor:
    """What is left in residual: one sum in float32, one cast."""
    return (given["x"].float() + given["residual"].float()).to(dtype).double()


def aggregate(case: NormCase, given: Inputs, truth: Outputs, outputs: Outputs) -> list[tuple[str, str, float]]:
    """Beside a 16-bit residual: out is that of the stored sum in all elements, or that of the exact sum in all elements.

    Of each of them the bound has no 2 u: of the exact one, which float32 rounds, 2^-23 in their place.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    if given["residual"] is None or dtype == torch.float32 or case.exact >= 0 or not truth[case.result].numel():
        return []
    stored = _stored(given, dtype)
    of_stored = rms_norm(stored, given["weight"], given["eps"], group_size=given["group_size"], gemma=given["gemma"])
    ratios = []
    for s, out, more in ((stored, of_stored, 0.0), (given["x"] + given["residual"], truth[case.result], 2.0**-23)):
        r, W, _ = _factors(given, s)
        relative = UNIT_ROUNDOFF[dtype] + _relative(case, given) + more
        allowed = relative * out.abs() + flush_error((1 + r) * (1 + W.abs()) * 2, dtype)
        ratios.append(float(((outputs[case.result].double() - out).abs() / allowed).max()))
    if min(ratios) <= 1:
        return []
    return [(case.result, "neither the stored nor the exact sum of x and residual was normalised throughout", min(ratios))]
