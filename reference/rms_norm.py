"""rms_norm: rows divided by their root mean square, with a residual added before, a weight and a gate multiplied after."""

import torch
from torch import Tensor

from reference import checks


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    group_size: int | None = None,
    gemma: bool = False,
) -> Tensor:
    """`o = s W G / sqrt(mean(s^2) + eps)` with `s = x`, or `s = x + residual`, which is rounded and stored in residual.

    x [..., D] of one to four dimensions; residual, gate like x, not both; the mean is over groups of group_size neighbours
    (None: D). weight [D] in x's dtype or float32, or None: W = weight, `1 + weight` with gemma, or 1. G = silu(gate), or 1.
    All in float32, rounded once. (float64 in, float64 out: that is the truth, of the sum that was not rounded.)
    Raises TypeError (dtypes) and ValueError (shapes, strides, group_size, eps, gemma without a weight, overlap).
    """
    return _normalised(x, weight, eps, residual, gate, group_size, gemma, False)


def rms_norm_in_place(
    x: Tensor,
    weight: Tensor | None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    group_size: int | None = None,
    gemma: bool = False,
) -> None:
    """As rms_norm, with the result stored in x. Raises ValueError besides where x shares memory with itself or the others."""
    result = _normalised(x, weight, eps, residual, gate, group_size, gemma, True)
    x.copy_(result)


def _normalised(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None, gate: Tensor | None, group_size: int | None,
    gemma: bool, in_place: bool,
) -> Tensor:  # fmt: skip
    checks.is_tensor("x", x)
    if not 1 <= x.dim() <= 4:
        raise ValueError(f"x must have 1 to 4 dimensions, got shape {list(x.shape)}")
    checks.dense_last_dim("x", x)
    D = x.shape[-1]
    for name, other in (("residual", residual), ("gate", gate)):
        if other is not None:
            checks.is_tensor(name, other)
            checks.has_shape(name, other, x.shape)
            checks.dense_last_dim(name, other)
    checks.same_dtype({"x": x, "residual": residual, "gate": gate})
    if residual is not None and gate is not None:
        raise ValueError("residual and gate cannot both be given")
    checks.is_bool("gemma", gemma)
    if weight is not None:
        checks.parameter_vector("weight", weight, D, x.dtype)
    elif gemma:
        raise ValueError("gemma needs a weight, to which it adds 1")
    checks.positive("eps", eps)
    if group_size is not None:
        checks.is_count("group_size", group_size, 1)
        if D % group_size:
            raise ValueError(f"group_size = {group_size} does not divide the {D} columns of x")
    if in_place:
        checks.disjoint({"x": x, "residual": residual}, {"gate": gate, "weight": weight})
    else:
        checks.disjoint({"residual": residual}, {"x": x, "weight": weight})

    compute = torch.promote_types(x.dtype, torch.float32)
    s = x.to(compute)
    if residual is not None:
        residual.copy_(s + residual.to(compute))
        s = residual.to(compute)
    size = group_size or max(D, 1)
    groups = s.unflatten(-1, (D // size, size)) if D else s[..., None]
    root = torch.sqrt(groups.square().mean(-1, keepdim=True) + eps)
    out = (groups / root.masked_fill(root == 0, 1.0)).reshape(x.shape)  # 0: eps was flushed beside a row of zeros
    if weight is not None:
        out = out * (weight.to(compute) + 1 if gemma else weight.to(compute))
    if gate is not None:
        z = gate.to(compute)
        out = out * (z / (1 + torch.exp(-z)))
    return out.to(x.dtype).contiguous()
