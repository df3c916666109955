"""merge_state: two attentions of the same queries, each over its own keys, become the attention over all of them."""

import torch
from torch import Tensor

from reference import checks


def merge_state(v_a: Tensor, lse_a: Tensor, v_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """`out = (exp(lse_a) v_a + exp(lse_b) v_b) / (exp(lse_a) + exp(lse_b))` and `lse = log(exp(lse_a) + exp(lse_b))`.

    v_a, v_b [T, H, Dv] of one dtype, in which out is; lse_a, lse_b [T, H] float32: natural logarithms of the sums of a part's
    weights. A part without keys has -inf: its values are never looked at. Two of them give 0 and -inf.
    Raises TypeError (dtypes), ValueError (shapes, strides, an lse that is NaN or +inf).
    """
    for name, values in (("v_a", v_a), ("v_b", v_b)):
        checks.is_tensor(name, values, 3)
        checks.dense_last_dim(name, values)
    checks.same_dtype({"v_a": v_a, "v_b": v_b})
    T, H, Dv = v_a.shape
    checks.has_shape("v_b", v_b, [T, H, Dv])
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        checks.is_tensor(name, lse, 2)
        checks.has_dtype(name, lse, (torch.promote_types(v_a.dtype, torch.float32),))
        checks.has_shape(name, lse, [T, H])
        if not bool((lse < torch.inf).all()):
            raise ValueError(f"{name} must hold finite numbers, or -inf for a part without keys; got NaN or +inf")

    compute = lse_a.dtype
    top = torch.maximum(lse_a, lse_b)
    base = top.masked_fill(top == -torch.inf, 0.0)  # of two empty parts: both weights are then 0
    weight_a, weight_b = torch.exp(lse_a - base)[..., None], torch.exp(lse_b - base)[..., None]
    total = weight_a + weight_b
    only_a, only_b = (lse_b == -torch.inf) & (lse_a > -torch.inf), (lse_a == -torch.inf) & (lse_b > -torch.inf)
    share = total.masked_fill(total == 0, 1.0)
    part_a = torch.where(lse_a[..., None] == -torch.inf, 0.0, weight_a / share * v_a.to(compute))
    part_b = torch.where(lse_b[..., None] == -torch.inf, 0.0, weight_b / share * v_b.to(compute))
    out, lse = v_a.new_empty(T, H, Dv), lse_a.new_empty(T, H)
    out.copy_(part_a + part_b)
    out[only_a], out[only_b] = v_a[only_a], v_b[only_b]  # its bits, whatever they are
    lse.copy_(base + torch.log(total[..., 0]))
    return out, lse
