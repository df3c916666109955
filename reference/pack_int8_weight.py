"""pack_int8_weight and unpack_int8_weight: a weight of bytes to and from panels of 32 outputs. Bits only move."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference import checks

MOST_COLUMNS = 65536  # of K: sums of 255 * 128 * K fit 32 bits


def pack_int8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """data[i, j, h, a, n, c] = weight[32i + 16h + n, 64j + 4a + c], 0 where that lies outside; and the sum of each row.

    weight int8 [N, K], N >= 1, 1 <= K <= 65536, any strides; data [ceil(N/32), ceil(K/64), 2, 16, 16, 4]; sums int32 [N].
    Raises TypeError (dtype), ValueError (rank, sizes).
    """
    checks.is_tensor("weight", weight, 2)
    checks.has_dtype("weight", weight, (torch.int8,))
    N, K = weight.shape
    if N < 1 or K < 1:
        raise ValueError(f"weight must not be empty, got shape {[N, K]}")
    if K > MOST_COLUMNS:
        raise ValueError(f"weight must have at most {MOST_COLUMNS} columns, got K = {K}")
    padded = pad(weight, (0, -K % 64, 0, -N % 32))
    tiles = padded.reshape(-(-N // 32), 2, 16, -(-K // 64), 16, 4)  # i, h, n, j, a, c
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous(), weight.sum(-1, dtype=torch.int32)


def unpack_int8_weight(data: Tensor, N: int, K: int) -> Tensor:
    """The weight [N, K] that `data` holds, contiguous. Raises TypeError (dtype), ValueError (sizes, shape, strides)."""
    checks.is_tensor("data", data, 6)
    checks.has_dtype("data", data, (torch.int8,))
    checks.is_count("N", N, 1)
    checks.is_count("K", K, 1)
    if K > MOST_COLUMNS:
        raise ValueError(f"K must be at most {MOST_COLUMNS}, got {K}")
    checks.has_shape("data", data, [-(-N // 32), -(-K // 64), 2, 16, 16, 4])
    if not data.is_contiguous():
        raise ValueError(f"data must be contiguous, got strides {list(data.stride())}")
    rows = data.permute(0, 2, 4, 1, 3, 5).reshape(-(-N // 32) * 32, -(-K // 64) * 64)
    return rows[:N, :K].clone(memory_format=torch.contiguous_format)
