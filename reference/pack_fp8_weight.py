"""pack_fp8_weight and unpack_fp8_weight: codes of float8 to and from panels of 32 outputs. Bits only move."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference import checks


def pack_fp8_weight(weight: Tensor, scales: Tensor, block_n: int, block_k: int) -> tuple[Tensor, Tensor]:
    """data[i, j, h, a, n, c] = the code weight[32i + 16h + n, 32j + 2a + c], 0 where that lies outside; and a copy of scales.

    weight float8_e4m3fn [N, K], N and K at least 1, any strides; scales float32 [ceil(N/block_n), ceil(K/block_k)], finite, any
    strides; data uint8 [ceil(N/32), ceil(K/32), 2, 16, 16, 2]. Raises TypeError (dtypes), ValueError (rank, sizes, scales).
    """
    checks.is_tensor("weight", weight, 2)
    checks.has_dtype("weight", weight, (torch.float8_e4m3fn,))
    N, K = weight.shape
    if N < 1 or K < 1:
        raise ValueError(f"weight must not be empty, got shape {[N, K]}")
    check_scales(scales, N, K, block_n, block_k)
    if not scales.isfinite().all():
        raise ValueError("scales must be finite")
    padded = pad(weight.view(torch.uint8), (0, -K % 32, 0, -N % 32))
    tiles = padded.reshape(-(-N // 32), 2, 16, -(-K // 32), 16, 2)  # i, h, n, j, a, c
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous(), scales.clone(memory_format=torch.contiguous_format)


def unpack_fp8_weight(data: Tensor, N: int, K: int) -> Tensor:
    """The weight [N, K] that `data` holds, contiguous. Raises TypeError (dtype), ValueError (sizes, shape, strides)."""
    checks.is_tensor("data", data, 6)
    checks.has_dtype("data", data, (torch.uint8,))
    checks.is_count("N", N, 1)
    checks.is_count("K", K, 1)
    checks.has_shape("data", data, [-(-N // 32), -(-K // 32), 2, 16, 16, 2])
    if not data.is_contiguous():
        raise ValueError(f"data must be contiguous, got strides {list(data.stride())}")
    rows = data.permute(0, 2, 4, 1, 3, 5).reshape(-(-N // 32) * 32, -(-K // 32) * 32)
    return rows[:N, :K].clone(memory_format=torch.contiguous_format).view(torch.float8_e4m3fn)


def check_scales(scales: Tensor, N: int, K: int, block_n: int, block_k: int) -> None:
    """One float32 scale (float64 for the truth) for each block of a weight [N, K]."""
    checks.is_count("block_n", block_n, 1)
    checks.is_count("block_k", block_k, 1)
    checks.is_tensor("scales", scales, 2)
    checks.has_dtype("scales", scales, (torch.float32, torch.float64))
    checks.has_shape("scales", scales, [-(-N // block_n), -(-K // block_k)])
