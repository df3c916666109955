"""Usual slips in a linear layer of bytes: those of its quantizer, and its own."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.quantize_rows_int8.slips import QUANTIZERS
from properties.shared.slips import Given, Reference, but


def _quantized_by(quantizer: Any, reference: Reference, **given: Any) -> Tensor:
    """The layer on what another quantizer makes of the rows of x."""
    if given["form"] != "linear":
        return torch.as_tensor(reference(**given))
    x = given["x"]
    q, scale, azp = quantizer(x.reshape(-1, given["K"]), given["symmetric"])
    others = {name: value for name, value in given.items() if name not in ("x", "symmetric")}
    scale = scale.to(torch.promote_types(x.dtype, torch.float32))
    product = others | {"form": "matmul", "q": q, "scale": scale, "azp": azp, "out_dtype": x.dtype}
    return torch.as_tensor(reference(**product)).reshape(*x.shape[:-1], given["N"])


def _bias_scaled(given: Given) -> Tensor | None:
    return None if given["bias"] is None else given["bias"] * given["w_scale"].to(given["bias"].dtype)


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        **{f"in its quantizer {says}": partial(_quantized_by, own, reference) for says, own in QUANTIZERS.items()},
        "the bias were scaled too": but(reference, bias=_bias_scaled),
        "zero points had the other sign": but(reference, azp=lambda given: None if given["azp"] is None else -given["azp"]),
        "zero points were 0": but(reference, azp=None),
        "there were no bias": but(reference, bias=None),
    }
