"""fp8_linear: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import ROUNDED_ONCE, Bound, Inputs, Outputs
from properties.fp8_linear.cases import Fp8LinearCase, dense_weight
from properties.shared.linear_layers import products_error


def bound(case: Fp8LinearCase, given: Inputs, truth: Outputs) -> Bound:
    """Codes are numbers exactly. K products with a scale and a bias are summed in float32 in any order, and rounded once.

    - Each product rounds once, its scale once, and the sum of K of them with a bias K + 2 times at most: g(K + 4) S, where
      S = sum_k |x_k s w_k| + |bias|.
    - Of 16-bit x a kernel may round s w to x's dtype before the product, so that tiles can take it: an error u |x_k s w_k| in
      each term. The signs of the codes were drawn independently of everything else, so the sum of those errors stays below 8
      standard deviations: u min(sum_k |c_k|, 8 sqrt(sum_k c_k^2)), c_k = x_k s w_k. In float16 a subnormal s w errs by half a
      step of those: 2^-25 min(sum_k |x_k|, 8 sqrt(sum_k x_k^2)).
    - The result rounds once, u |ref|. Flushed operands, products and results: t(K + sum_k (|x_k| + |s w_k|)).

    Small integers with scales that are powers of 2, and single products with scales of 1, are exact in all of this: equality.
    """
    if case.values != "uniform":
        return {"out": ROUNDED_ONCE}
    dtype: torch.dtype = getattr(torch, case.dtype)
    return {"out": products_error(given["x"], dense_weight(given), given["bias"], truth["out"], dtype)}
