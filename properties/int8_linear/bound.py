"""int8_linear: how far a result may be from the truth."""

import torch

from kernelpair.contract.pair import ROUNDED_ONCE, Bound, Inputs, Outputs
from properties.int8_linear.cases import Int8Case, exact
from properties.shared.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error
from reference.pack_int8_weight import unpack_int8_weight
from reference.quantize_rows_int8 import quantize_rows_int8


def bound(case: Int8Case, given: Inputs, truth: Outputs) -> Bound:
    """Sums of bytes are exact; what follows them rounds a few times, and the result once.

    The whole number is converted to float32, multiplied with both scales, and the bias is added: four roundings of 2^-24 each,
    g(2), of S = scale w_scale (|sum q w| + |azp sum w|) + |bias|. Where zero points are subtracted in float32 after the
    products were converted, that is two conversions and a subtraction: g(3). Subnormal results may be flushed.

    With scales that are powers of 2 and sums below 2^24 nothing rounds but the result: equality.
    """
    if exact(case):
        return {"out": ROUNDED_ONCE}
    dtype: torch.dtype = getattr(torch, case.dtype)
    q, scale, azp = rows_of(case, given)
    weight = unpack_int8_weight(given["data"], case.N, case.K).double()
    sums = (q.double() @ weight.T).abs()
    if azp is not None:
        sums = sums + (azp.double()[:, None] * weight.sum(-1)).abs()
    size = scale.double().abs()[:, None] * given["w_scale"].abs() * sums
    if given["bias"] is not None:
        size = size + given["bias"].abs()
    size = size.reshape(truth["out"].shape)
    rounding = UNIT_ROUNDOFF[dtype] * truth["out"].abs()
    steps = 2 if azp is None else 3
    return {"out": rounding + accumulation_error(steps) * size + flush_error(torch.zeros(()), dtype)}


def rows_of(case: Int8Case, given: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The bytes of the rows with their scales and zero points: as they are given, or as the contract fixes them for x."""
    if case.form == "matmul":
        return given["q"], given["scale"], given["azp"]
    return quantize_rows_int8(given["x"].reshape(-1, case.K), case.symmetric)
