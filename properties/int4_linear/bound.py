"""int4_linear: how far a result may be from the truth."""

import torch
from torch.nn.functional import pad

from kernelpair.contract.pair import ROUNDED_ONCE, Bound, Inputs, Outputs
from properties.int4_linear.cases import Int4Case, dense_weight, steps_and_scales
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error
from properties.shared.linear_layers import products_error
from reference.quantize_rows_int8 import quantize_rows_int8


def bound(case: Int4Case, given: Inputs, truth: Outputs) -> Bound:
    """A code less its zero point is a whole number. Where x keeps its dtype, K products with a scale and a bias are summed in
    float32 in any order and rounded once.

    - Each product rounds once, its scale once, and the sum of K of them with a bias K + 2 times at most: g(K + 4) S, where
      S = sum_k |x_k w_k| + |bias|, w = s (c - z).
    - Of 16-bit x a kernel may round w to x's dtype before the product: an error u |x_k w_k| in each term. The signs of x were
      drawn independently of everything else, so the sum of those errors stays below u min(sum_k |x_k w_k|,
      8 sqrt(sum_k (x_k w_k)^2)); of rows of one sign the first alone holds. In float16 a subnormal w errs by half a step of
      those: 2^-25 min(sum_k |x_k|, 8 sqrt(sum_k x_k^2)), or 2^-25 sum_k |x_k|.
    - The result rounds once, u |ref|. Flushed operands, products and results: t(K + sum_k (|x_k| + |w_k|)).

    In int8 the sum of a group is exact. It becomes a float32, takes its scale, is added to those of the other groups, takes the
    scale of the row and the bias: G + 4 roundings, and ceil(K / 128) more for a kernel that converts a long group in parts, of
    sum_groups |term| + |bias|. G terms and the result may be flushed.

    Whole x whose rows reach 127, with scales that are powers of 2, are exact in all of this: equality.
    """
    if case.values == "integers":
        return {"out": ROUNDED_ONCE}
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.activation == "x":
        signs = case.values != "one_sign"
        return {"out": products_error(given["x"], dense_weight(given), given["bias"], truth["out"], dtype, random_signs=signs)}
    q, scale, _ = quantize_rows_int8(given["x"].reshape(-1, case.K).contiguous())
    steps, scales = steps_and_scales(given)
    width = case.K if case.group == -1 else min(case.group, case.K)
    by_group = (pad(rows.double(), (0, -case.K % width)).unflatten(-1, (-1, width)) for rows in (q, steps))
    sums = torch.einsum("mgk,ngk->mng", *by_group).abs()
    size = (sums * scales.abs()).sum(-1).mul(scale.double()[:, None]).reshape(truth["out"].shape)
    if given["bias"] is not None:
        size = size + given["bias"].abs()
    rounded = accumulation_error(case.groups + -(-case.K // 128) + 4) * size
    flushed = flush_error(torch.tensor(float(case.groups)), dtype)
    return {"out": UNIT_ROUNDOFF[dtype] * truth["out"].abs() + rounded + flushed}
