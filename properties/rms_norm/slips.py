"""Usual slips in a norm."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.shared.slips import Reference, but


def _eps_outside(reference: Reference, **given: Any) -> Tensor | None:
    """Divided by `sqrt(mean) + eps`: the result by the one root, times it, over the other."""
    wide = given["x"].to(torch.promote_types(given["x"].dtype, torch.float32))
    wide = wide if given.get("residual") is None else wide + given["residual"]
    groups = wide.unflatten(-1, (-1, given.get("group_size") or max(wide.shape[-1], 1)))
    mean = groups.square().mean(-1, keepdim=True)
    ratio = (torch.sqrt(mean + given["eps"]) / (torch.sqrt(mean) + given["eps"])).expand_as(groups).flatten(-2)
    result = reference(**given)
    if result is None:
        given["x"].mul_(ratio)
        return None
    return torch.mul(result, ratio).to(result.dtype)


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "gemma's weight were not one more": but(reference, gemma=False),
        "every weight were one more, as gemma's": but(reference, gemma=lambda given: given["weight"] is not None),
        "eps were added to the root, not below it": partial(_eps_outside, reference),
        "the mean were that of a whole row, not of a group": but(reference, group_size=None),
        "there were no gate": but(reference, gate=None),
        "there were no weight": but(reference, weight=None, gemma=False),
    }
