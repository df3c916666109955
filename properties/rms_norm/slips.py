"""Usual slips in a norm."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

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


def _of_another_x(reference: Reference, other: Tensor, /, **given: Any) -> Tensor | None:
    """The reference of this one; in place its result is stored in x."""
    result = reference(**given | {"x": other})
    if result is None:
        given["x"].copy_(other)
    return result


def _gate_first(reference: Reference, **given: Any) -> Tensor | None:
    gate = given.get("gate")
    return reference(**given) if gate is None else _of_another_x(reference, given["x"] * silu(gate), **given | {"gate": None})


def _gate_by_sigmoid(reference: Reference, **given: Any) -> Tensor | None:
    gate = given.get("gate")
    if gate is None:
        return reference(**given)
    result = reference(**given | {"gate": None})
    if result is None:
        given["x"].mul_(gate.sigmoid())
        return None
    return torch.mul(result, gate.sigmoid())


def _layer_norm(reference: Reference, **given: Any) -> Tensor | None:
    residual, x = given.get("residual"), given["x"]
    both = x if residual is None else x + residual
    groups = both.unflatten(-1, (-1, given.get("group_size") or max(x.shape[-1], 1)))
    result = _of_another_x(reference, (groups - groups.mean(-1, keepdim=True)).flatten(-2), **given | {"residual": None})
    if residual is not None:
        residual.copy_(both)
    return result


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "gemma's weight were not one more": but(reference, gemma=False),
        "every weight were one more, as gemma's": but(reference, gemma=lambda given: given["weight"] is not None),
        "eps were added to the root, not below it": partial(_eps_outside, reference),
        "the mean were that of a whole row, not of a group": but(reference, group_size=None),
        "the mean were subtracted first, as in a layer norm": partial(_layer_norm, reference),
        "the gate met x, not what has been normalised": partial(_gate_first, reference),
        "the gate were its sigmoid, not its silu": partial(_gate_by_sigmoid, reference),
        "there were no gate": but(reference, gate=None),
        "there were no weight": but(reference, weight=None, gemma=False),
    }
