"""quantize_rows_int8: each row in int8 with a scale of its own. The bits are those of the float32 operations written here."""

import torch
from torch import Tensor

from reference import checks

LEAST_RANGE = 1e-7  # of rows of zeros, as a float32 number


def quantize_rows_int8(x: Tensor, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """q int8 [M, K], scale float32 [M] and azp int32 [M] with x about scale (q - azp); azp is None for symmetric rows.

    x [M, K] float, dense in K. Symmetric: scale = max |x| / 127 and q = rne(x (127 / max |x|)). Otherwise the row's range,
    widened to hold 0, goes to -128 .. 127. Whatever x is, every step is one float32 operation; rne rounds halves to even.
    A row with NaN or infinity has the scale NaN, and zeros. Raises TypeError (dtype), ValueError (rank, strides).
    """
    checks.is_tensor("x", x, 2)
    checks.has_dtype("x", x, checks.FLOAT_DTYPES)
    checks.dense_last_dim("x", x)
    checks.is_bool("symmetric", symmetric)
    wide = torch.nn.functional.pad(x.to(torch.float32), (0, 1))  # a zero more: it is in the range of every row
    finite = wide.isfinite().all(-1)
    wide = wide.masked_fill(~finite[:, None], 0.0)
    largest = wide.abs().amax(-1) if symmetric else wide.amax(-1) - wide.amin(-1)
    largest = largest.clamp_min(torch.tensor(LEAST_RANGE))
    steps = torch.full_like(largest, 127.0 if symmetric else 255.0)
    scale = torch.div(largest, steps)
    inverse = torch.div(steps, largest)  # a number over a tensor would be a reciprocal and a product
    lowest = torch.zeros_like(largest) if symmetric else wide.amin(-1)
    azp = torch.round(-128.0 - lowest * inverse) if not symmetric else lowest
    azp = azp.masked_fill(~finite, 0.0).to(torch.int32)
    q = torch.round(wide[:, :-1] * inverse[:, None]).to(torch.int32) + azp[:, None]
    q = q.clamp(-128, 127).to(torch.int8)
    return q, scale.masked_fill(~finite, torch.nan), None if symmetric else azp
