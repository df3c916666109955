"""Rows of bytes by torch's operators, for kernels of others that leave scales of rows, or zero points, to the caller."""

from collections.abc import Callable, Mapping
from typing import Any

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


def in_either_form(product: Callable[[Tensor, Tensor, Tensor | None, torch.dtype], Tensor], given: Mapping[str, Any]) -> Tensor:
    """int8_linear of symmetric rows by product(q [M, K], scale [M, 1], bias, dtype of the result)."""
    bias = given.get("bias")
    if given["form"] == "linear":
        x = given["x"]
        return product(*quantized_rows(x.reshape(-1, given["K"])), bias, x.dtype).reshape(*x.shape[:-1], given["N"])
    return product(given["q"], given["scale"][:, None], bias, getattr(torch, given["out_dtype"]))


def unsigned(q: Tensor) -> Tensor:
    """q + 128 as uint8, of q in int8."""
    return q.view(torch.uint8) ^ 0x80
