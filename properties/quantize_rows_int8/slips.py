"""Usual slips in the quantizer: codes that are one off here and there."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from reference.quantize_rows_int8 import LEAST_RANGE, quantize_rows_int8

Quantized = tuple[Tensor, Tensor, Tensor | None]
Steps = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(numbers, scale, 127 or 255 over the range) -> how many steps of a code they are."""


def away_from_zero(steps: Tensor) -> Tensor:
    """The nearest whole numbers, of halves those that are larger in size."""
    return torch.trunc(steps + torch.copysign(torch.tensor(0.5), steps))


def quantized(
    x: Tensor, symmetric: bool = True, *, steps: Steps = lambda x, scale, inverse: x * inverse,
    rounded: Callable[[Tensor], Tensor] = torch.round,
) -> Quantized:
    """As the reference, but for how many steps a number is, or how they are rounded."""
    _, scale, azp = quantize_rows_int8(x, symmetric)
    rows = x.to(torch.float32).masked_fill(scale.isnan()[:, None], 0.0)
    ends = torch.nn.functional.pad(rows, (0, 1))
    low, high = ends.amin(-1, keepdim=True), ends.amax(-1, keepdim=True)
    largest = (torch.maximum(-low, high) if symmetric else high - low).clamp_min(torch.tensor(LEAST_RANGE))
    most = torch.full_like(largest, 127.0 if symmetric else 255.0)
    factors = torch.div(largest, most), torch.div(most, largest)
    codes = rounded(steps(rows, *factors)).to(torch.int32)
    if azp is not None:
        azp = rounded(-128.0 - steps(low, *factors)).masked_fill(scale.isnan()[:, None], 0.0)[:, 0].to(torch.int32)
        codes = codes + azp[:, None]
    return codes.clamp(-128, 127).to(torch.int8), scale, azp


QUANTIZERS: dict[str, Callable[..., Quantized]] = {
    "numbers were divided by the scale, not multiplied by 127 or 255 over the range": partial(
        quantized, steps=lambda x, scale, inverse: x / scale
    ),
    "numbers were multiplied by 1 / scale, not by 127 or 255 over the range": partial(
        quantized, steps=lambda x, scale, inverse: x * torch.reciprocal(scale)
    ),
    "halves were rounded away from zero, not to even": partial(quantized, rounded=away_from_zero),
}
"""A slip -> the quantizer that makes it."""
