"""Usual slips in the gates of the delta rule."""

from functools import partial
from typing import Any

from torch import Tensor

from properties.shared.slips import Reference, but


def _rate_as_it_is(reference: Reference, sign: int, **given: Any) -> tuple[Tensor, Tensor]:
    decay, strength = reference(**given | {"A_log": given["A_log"] * 0})
    return sign * decay * given["A_log"].to(decay.dtype), strength


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "A_log were the rate, not its logarithm": partial(_rate_as_it_is, reference, 1),
        "A_log were the rate and had its sign, not its logarithm": partial(_rate_as_it_is, reference, -1),
        "softplus_threshold bounded x, not softplus_beta x": but(
            reference, softplus_threshold=lambda given: given["softplus_threshold"] * given["softplus_beta"]
        ),
        "softplus_beta were 1": but(reference, softplus_beta=1.0),
        "there were no dt_bias": but(reference, dt_bias=lambda given: given["dt_bias"] * 0),
    }
