"""pack_int4_weight and unpack_int4_weight: codes of four bits, scales and zero points to and from panels of 32 outputs."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference import checks

MOST_COLUMNS = 2**20  # of K: sums of 127 * 16 * K fit 32 bits
MIDDLE = 8  # the zero point of a weight that has none


def pack_int4_weight(codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """data[i, j, h, a, n] = codes[r, 32j + 2a] | codes[r, 32j + 2a + 1] << 4, r = 32i + 16h + n; the others [i, g, n] = of output
    32i + n and group g. 0 where that lies outside.

    codes uint8 [N, K] in 0..15, N >= 1, 1 <= K <= 2^20; scales float [N, G], finite; zeros uint8 [N, G] in 0..16, None: 8;
    G = ceil(K / group_size), -1: K. All of any strides. data uint8 [ceil(N/32), ceil(K/32), 2, 16, 16], scales float32 and zeros
    uint8 [ceil(N/32), G, 32]. Raises TypeError (dtypes), ValueError (rank, sizes, values).
    """
    checks.is_tensor("codes", codes, 2)
    checks.has_dtype("codes", codes, (torch.uint8,))
    N, K = codes.shape
    if N < 1 or K < 1:
        raise ValueError(f"codes must not be empty, got shape {[N, K]}")
    G = groups_of(N, K, group_size)
    _at_most("codes", codes, 15)
    checks.is_tensor("scales", scales, 2)
    checks.has_dtype("scales", scales, checks.FLOAT_DTYPES)
    checks.has_shape("scales", scales, [N, G])
    if not scales.isfinite().all():
        raise ValueError("scales must be finite")
    if zeros is not None:
        checks.is_tensor("zeros", zeros, 2)
        checks.has_dtype("zeros", zeros, (torch.uint8,))
        checks.has_shape("zeros", zeros, [N, G])
        _at_most("zeros", zeros, 16)
    padded = pad(codes, (0, -K % 32, 0, -N % 32)).reshape(-(-N // 32), 2, 16, -(-K // 32), 16, 2)  # i, h, n, j, a, c
    tiles = padded.permute(0, 3, 1, 4, 2, 5)
    points = torch.full((N, G), MIDDLE, dtype=torch.uint8) if zeros is None else zeros
    return (tiles[..., 0] | tiles[..., 1] << 4).contiguous(), _panels(scales.to(torch.float32)), _panels(points)


def unpack_int4_weight(
    data: Tensor, scales: Tensor, zeros: Tensor, N: int, K: int, group_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The codes [N, K], scales [N, G] and zeros [N, G] that were packed, contiguous; a weight that had no zeros has 8 everywhere.

    Raises TypeError (dtypes), ValueError (sizes, shapes, strides).
    """
    checks.is_count("N", N, 1)
    checks.is_count("K", K, 1)
    G = groups_of(N, K, group_size)
    panels = -(-N // 32)
    shapes = {"data": [panels, -(-K // 32), 2, 16, 16], "scales": [panels, G, 32], "zeros": [panels, G, 32]}
    dtypes = {"data": (torch.uint8,), "scales": (torch.float32, torch.float64), "zeros": (torch.uint8,)}
    for name, value in (("data", data), ("scales", scales), ("zeros", zeros)):
        checks.is_tensor(name, value)
        checks.has_dtype(name, value, dtypes[name])
        checks.has_shape(name, value, shapes[name])
        if not value.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {list(value.stride())}")
    codes = torch.stack((data & 15, data >> 4), dim=-1).permute(0, 2, 4, 1, 3, 5).reshape(32 * panels, -1)[:N, :K]
    plain = (packed.permute(0, 2, 1).reshape(32 * panels, G)[:N] for packed in (scales, zeros))
    first, second, third = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (codes, *plain))
    return first, second, third


def groups_of(N: int, K: int, group_size: int) -> int:
    """How many groups of columns a weight [N, K] has."""
    if K > MOST_COLUMNS:
        raise ValueError(f"K must be at most {MOST_COLUMNS}, got {K}")
    checks.is_integer("group_size", group_size)
    if group_size < 1 and group_size != -1:
        raise ValueError(f"group_size must be at least 1, or -1, got {group_size}")
    return 1 if group_size == -1 else -(-K // group_size)


def _panels(values: Tensor) -> Tensor:
    """[N, G] as [ceil(N/32), G, 32], 0 behind the last output."""
    N, G = values.shape
    return pad(values, (0, 0, 0, -N % 32)).reshape(-1, 32, G).permute(0, 2, 1).contiguous()


def _at_most(name: str, values: Tensor, limit: int) -> None:
    above = (values > limit).nonzero()
    if len(above):
        n, k = above[0].tolist()
        raise ValueError(f"{name}[{n}, {k}] = {int(values[n, k])} is above {limit}")
