"""Usual slips in a rotation."""

import torch
from torch import Tensor

from properties.shared.slips import Given, Reference, but


def _cache(given: Given, sign: int, first: int) -> Tensor:
    """The cache with sines of this sign, and one half before the other."""
    halves = list(given["cos_sin_cache"].chunk(2, dim=-1))
    halves[1] = sign * halves[1]
    return torch.cat([halves[first], halves[1 - first]], dim=-1)


def _next(given: Given) -> Tensor:
    return torch.clamp(given["positions"] + 1, max=len(given["cos_sin_cache"]) - 1)


def _of_the_first_axis(given: Given) -> Tensor:
    positions: Tensor = given["positions"]
    return positions[:1].expand_as(positions) if positions.dim() == 2 else positions


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "a pair were the halves of a head (NeoX), also where it is two neighbours": but(reference, is_neox=True),
        "a pair were two neighbours, also where it is the halves of a head (NeoX)": but(reference, is_neox=False),
        "halves of a head (NeoX) and neighbours were exchanged": but(reference, is_neox=lambda given: not given["is_neox"]),
        "positions were one more": but(reference, positions=_next),
        "all axes had the positions of the first": but(reference, positions=_of_the_first_axis),
        "it rotated backwards": but(reference, cos_sin_cache=lambda given: _cache(given, -1, 0)),
        "sines stood before cosines": but(reference, cos_sin_cache=lambda given: _cache(given, 1, 1)),
        "sections lay side by side, also where they take turns": but(reference, mrope_interleaved=False),
    }
