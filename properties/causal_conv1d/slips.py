"""Usual slips in a convolution."""

from torch import Tensor

from properties.shared.slips import Given, Reference, but
from reference.causal_conv1d import causal_conv1d_pack_weight, causal_conv1d_unpack_weight


def _reversed(given: Given) -> Tensor:
    weight = causal_conv1d_unpack_weight(given["packed_weight"], given["dim"], given["width"])
    return causal_conv1d_pack_weight(weight.flip(-1).contiguous())


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "the first tap were that of the newest token": but(reference, packed_weight=_reversed),
        "there were no silu": but(reference, silu_activation=False),
        "there were always a silu": but(reference, silu_activation=True),
        "there were no bias": but(reference, bias=None),
    }
