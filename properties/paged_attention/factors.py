"""paged_attention: the descales and slopes of a case."""

from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import EXPANDED
from kernelpair.call.values import permutation, uniform

SIGNS = (1.0, -1.0, 1.0, -1.0, 1.0, 0.0)  # of factors of values, which may be any numbers

STEEP, MOST_STEEP_KEYS = 16.0, 4096


def descale_far(case: Any) -> tuple[float, float, float]:
    """What multiplies the descales of keys, the queries and the descales of values: of seldom cases as much as leaves products in
    the normal range of float32, one way or the other. float16 has no room for it."""
    far = {2: 1, 12: -1}.get(case.seed % 16, 0)
    if not far or case.dtype == "float16":
        return 1.0, 1.0, 1.0
    of_keys = 2.0 ** (60 * far) if case.descale[0] else 1.0
    return of_keys, 1 / of_keys, 2.0 ** (-60 * far)


def descales_of(case: Any) -> tuple[Tensor, Tensor]:
    """[B, Hkv] factors of keys and of values; of half of the requests without rows or without keys any numbers, where the layout
    has entries for each request."""
    B, Hkv = len(case.rows), case.kv_heads
    of_keys, of_values = (1 + uniform(case.seed, name, (B, Hkv), torch.float32, 0.5) for name in ("k_descale", "v_descale"))
    of_values *= torch.tensor(SIGNS)[(torch.arange(B * Hkv).view(B, Hkv) + case.seed) % len(SIGNS)]
    of_keys, of_values = of_keys * descale_far(case)[0], of_values * descale_far(case)[2]
    idle = [b for b, (rows, keys) in enumerate(zip(case.rows, case.lens)) if not rows or not keys]
    for name, factors in (("k_descale", of_keys), ("v_descale", of_values)):
        if case.seed // 16 % 2 and case.layout.get(name) != EXPANDED:
            factors[idle] = (torch.nan, torch.inf, -1.0, -torch.inf)[case.seed // 32 % 4]
    return of_keys, of_values


def steepness(case: Any) -> float:
    """What multiplies the slopes: of half of the cases more than 1, where scores stay small enough for their rounding."""
    return STEEP if case.seed // 4 % 2 == 1 and max(case.lens, default=0) <= MOST_STEEP_KEYS else 1.0


def slopes_of(case: Any) -> Tensor | None:
    """[H]: those of models, 2^(-8 (h + 1) / H), in any order; every fourth one has the other sign; or steeper ones."""
    if not case.alibi:
        return None
    order = permutation(case.seed, "alibi", case.heads)
    slopes = torch.exp2(-8 * (order + 1.0) / case.heads)
    return torch.where(order % 4 == 3, -slopes, slopes).float() * steepness(case)
