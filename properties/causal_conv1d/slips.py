"""Usual slips in a convolution."""

import torch
from torch import Tensor

from properties.shared.slips import Given, Reference, but
from reference.causal_conv1d import causal_conv1d_pack_weight, causal_conv1d_unpack_weight


def _reversed(given: Given) -> Tensor:
    weight = causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"])
    return causal_conv1d_pack_weight(weight.flip(-1).contiguous())


def _all(given: Given) -> Tensor | None:
    return None if given["has_initial_state"] is None else given["has_initial_state"] | True


def _ones(given: Given) -> Tensor:
    return torch.ones_like(given["num_accepted_tokens"])


def slips(reference: Reference) -> dict[str, Reference]:
    """Those of sequences, which may have no state to begin with."""
    return {
        "no request had an initial state": but(reference, has_initial_state=None),
        "every request had an initial state": but(reference, has_initial_state=_all),
        **of_any_tokens(reference),
    }


def of_drafts(reference: Reference) -> dict[str, Reference]:
    """Those of drafts."""
    return {
        "every request had one draft accepted": but(reference, num_accepted_tokens=_ones),
        **of_any_tokens(reference),
    }


def of_any_tokens(reference: Reference) -> dict[str, Reference]:
    """Those of a convolution, whatever its tokens are."""
    return {
        "the first tap were that of the newest token": but(reference, packed_weight=_reversed),
        "there were no silu": but(reference, silu_activation=False),
        "there were always a silu": but(reference, silu_activation=True),
        "there were no bias": but(reference, bias=None),
    }
