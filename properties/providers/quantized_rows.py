"""Rows of floats in bytes by torch's operators, for kernels of others that leave the scales of rows to the caller."""

import torch
from torch import Tensor

from reference.quantize_rows_int8 import LEAST_RANGE


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """q int8 [M, K] and scale float32 [M, 1] of x [M, K], symmetric: the bits of quantize_rows_int8.

    Of a row with NaN or infinity the codes are whatever comes, and the scale makes NaN of every result.
    """
    wide = x.to(torch.float32)
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(LEAST_RANGE)
    steps = torch.tensor(127.0).expand_as(largest)  # over a number torch multiplies by its inverse
    return (wide * (steps / largest)).round_().to(torch.int8), largest / steps
