"""Usual slips in a step of the delta rule."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.shared.slips import Given, Reference, but

ALL, NONE = 60.0, 1000.0  # the sigmoid of the one is 1, the exponential of minus the other 0
NO_EPS = 2.0**-126  # the least that a reference takes


def _other_layout(given: Given) -> str:
    return "vk" if given["state_layout"] == "kv" else "kv"


def _heads_in_turn(reference: Reference, **given: Any) -> Any:
    """Each value head with the query and the key of the head that has its number, from the first on again."""
    order = torch.arange(given["v"].shape[1]) % given["q"].shape[1]
    return reference(**given | {name: given[name][:, order] for name in ("q", "k")})


def _normed(
    reference: Reference, norm: Callable[[Tensor, float], Tensor], names: tuple[str, ...] = ("q", "k"), **given: Any
) -> Any:
    """q and k normalised in another way, of these those that are."""
    if not given["use_qk_l2norm"]:
        return reference(**given)
    normed = {name: norm(given[name], given["eps"]) if name in names else given[name] for name in ("q", "k")}
    return reference(**given | normed | {"use_qk_l2norm": False})


def _by_norm(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def _by_mean(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _eps_outside(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True).sqrt() + eps)


def slips(reference: Reference) -> dict[str, Reference]:
    """Those of a step, which makes the gates too."""
    return {
        "every beta were 1": but(reference, b=lambda given: given["b"] * 0 + ALL),
        "states did not decay": but(reference, A_log=lambda given: given["A_log"] * 0 - NONE),
        **of_the_rule(reference),
    }


def of_the_rule(reference: Reference) -> dict[str, Reference]:
    """Those of q, k and states, with whatever gates."""
    return {
        "a state lay the other way round (kv for vk)": but(reference, state_layout=_other_layout),
        "every state lay as kv": but(reference, state_layout="kv"),
        "every state lay as vk": but(reference, state_layout="vk"),
        "the results' scale were 1": but(reference, scale=1.0),
        "scale were the width to the power -1/2": but(reference, scale=None),
        "q and k were taken as they are (use_qk_l2norm)": but(reference, use_qk_l2norm=False),
        "q and k were always normalised (use_qk_l2norm)": but(reference, use_qk_l2norm=True),
        "q and k were divided by the root of the mean square, not of the sum": partial(_normed, reference, _by_mean),
        "eps were added to the root, not below it": partial(_normed, reference, _eps_outside),
        "k were taken as it is (use_qk_l2norm)": partial(_normed, reference, _by_norm, ("q",)),
        "q were taken as it is (use_qk_l2norm)": partial(_normed, reference, _by_norm, ("k",)),
        "there were no eps": but(reference, eps=NO_EPS),
        "eps were 1e-12": but(reference, eps=1e-12),
        "query head h were h % HK, not h // (HV // HK)": partial(_heads_in_turn, reference),
    }
