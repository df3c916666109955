"""pack_linear_weight and unpack_linear_weight: a linear layer's weight to and from panels of 32 outputs. Bits only move."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference import checks


def pack_linear_weight(weight: Tensor) -> Tensor:
    """packed[i, j, h, a, n, c] = weight[32i + 16h + n, 32j + r*a + c], and 0 where that lies outside.

    weight [N, K], N, K >= 1, float, any strides; result [ceil(N/32), ceil(K/32), 2, 32/r, 16, r], contiguous, with r = 2 for
    16-bit dtypes and 1 for wider ones. Raises TypeError (dtype), ValueError (rank, empty).
    """
    checks.is_tensor("weight", weight, 2)
    checks.has_dtype("weight", weight, checks.FLOAT_DTYPES)
    N, K = weight.shape
    if N < 1 or K < 1:
        raise ValueError(f"weight must not be empty, got shape {[N, K]}")
    r = 2 if weight.element_size() == 2 else 1
    padded = pad(weight, (0, -K % 32, 0, -N % 32))
    tiles = padded.reshape(-(-N // 32), 2, 16, -(-K // 32), 32 // r, r)  # i, h, n, j, a, c
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous()


def unpack_linear_weight(packed_weight: Tensor, N: int, K: int) -> Tensor:
    """The weight [N, K] that `packed_weight` holds, contiguous. Raises TypeError (dtype), ValueError (shape, strides)."""
    checks.is_tensor("packed_weight", packed_weight, 6)
    checks.has_dtype("packed_weight", packed_weight, checks.FLOAT_DTYPES)
    checks.is_count("N", N, 1)
    checks.is_count("K", K, 1)
    r = {torch.float32: 1, torch.float64: packed_weight.shape[5]}.get(
        packed_weight.dtype, 2
    )  # float64: of what was widened
    checks.has_shape("packed_weight", packed_weight, [-(-N // 32), -(-K // 32), 2, 32 // r, 16, r])
    if not packed_weight.is_contiguous():
        raise ValueError(f"packed_weight must be contiguous, got strides {list(packed_weight.stride())}")
    rows = packed_weight.permute(0, 2, 4, 1, 3, 5).reshape(-(-N // 32) * 32, -(-K // 32) * 32)
    return rows[:N, :K].clone(memory_format=torch.contiguous_format)
