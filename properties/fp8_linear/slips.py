"""Usual slips in a linear layer of float8."""

from torch import Tensor

from properties.shared.slips import Given, Reference, but


def _bias_scaled(given: Given) -> Tensor | None:
    bias, scales = given["bias"], given["scales"]
    return None if bias is None else bias * scales.repeat_interleave(given["block_n"], 0)[: given["N"], 0].to(bias.dtype)


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "the bias were scaled too": but(reference, bias=_bias_scaled),
        "it were divided by the scales": but(reference, scales=lambda given: 1 / given["scales"]),
        "the scales' rows were their columns": but(
            reference, scales=lambda given: given["scales"].T.reshape(given["scales"].shape)
        ),
        "there were no bias": but(reference, bias=None),
    }
