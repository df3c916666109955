"""fp8_to_float: the numbers that codes of float8_e4m3fn stand for. Converting back is not part of it."""

import torch
from torch import Tensor

from reference import checks


def fp8_to_float(w: Tensor, dtype: torch.dtype) -> Tensor:
    """Each code's number, exactly: (-1)^S 2^(E-7) (1 + m/8), or (-1)^S 2^-6 m/8 for E = 0; NaN where E and m are all ones.

    w float8_e4m3fn, at least one dimension, any strides; result of w's shape in `dtype`, contiguous. Raises TypeError (dtypes),
    ValueError (no dimension).
    """
    checks.is_tensor("w", w)
    checks.has_dtype("w", w, (torch.float8_e4m3fn,))
    if not w.dim():
        raise ValueError("w must have at least one dimension, got a scalar")
    if dtype not in checks.FLOAT_DTYPES:
        raise TypeError(f"dtype must be a float dtype, got {dtype}")
    codes = w.view(torch.uint8).to(torch.int32)
    exponent, mantissa = codes >> 3 & 15, (codes & 7).to(torch.float32) / 8
    magnitude = torch.where(exponent > 0, torch.ldexp(1 + mantissa, exponent - 7), mantissa * 2.0**-6)
    magnitude[codes & 127 == 127] = torch.nan
    return torch.where(codes < 128, magnitude, -magnitude).to(dtype).contiguous()
