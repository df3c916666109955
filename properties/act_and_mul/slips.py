"""Usual slips in a gated activation."""

import torch

from properties.shared.slips import Given, Reference, but


def _other(given: Given, one: str, other: str) -> str:
    return other if given["activation"] == one else str(given["activation"])


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "gelu were the form with tanh": but(reference, activation=lambda given: _other(given, "gelu", "gelu_tanh")),
        "gelu_tanh were the form with erf": but(reference, activation=lambda given: _other(given, "gelu_tanh", "gelu")),
        "every activation were silu": but(reference, activation="silu"),
        "the second half went through the activation, not the first": but(
            reference, x=lambda given: torch.cat(given["x"].chunk(2, dim=-1)[::-1], dim=-1)
        ),
    }
