"""Usual slips in a prefill by the delta rule: those of one step, and of its chunks."""

from itertools import pairwise

import torch
from torch import Tensor

from properties.gated_delta_rule_update.slips import of_the_rule
from properties.shared.slips import Given, Reference, but

CHUNK = 64


def _of_sums(given: Given) -> Tensor:
    """Log decays as the differences of their sums in float32, which begin anew with each chunk of a sequence."""
    decays: Tensor = given["g"].clone(memory_format=torch.contiguous_format)
    for first, last in pairwise(given["cu_seqlens"].tolist()):
        for part in decays[first:last].split(CHUNK):
            part[1:] = part.to(torch.float32).cumsum(0).diff(dim=0)
    return decays


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "a log decay far below -256 stayed in a chunk's float32 sums, and took the digits of those behind it": but(
            reference, g=_of_sums
        ),
        "every beta were 1": but(reference, beta=lambda given: given["beta"] * 0 + 1),
        "states did not decay": but(reference, g=lambda given: given["g"] * 0),
        **of_the_rule(reference),
    }
