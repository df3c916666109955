"""Usual slips in a choice of experts."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.shared.slips import Reference, but


def _bias_weighs(reference: Reference, **given: Any) -> tuple[Tensor, Tensor]:
    weights, ids = reference(**given)
    bias = given["correction_bias"]
    return (weights, ids) if bias is None else (weights + bias[ids.clamp(min=0).long()].to(weights.dtype) * (ids >= 0), ids)


def _last_of_equals(reference: Reference, **given: Any) -> tuple[Tensor, Tensor]:
    bias, logits = given["correction_bias"], given["logits"]
    weights, ids = reference(**given | {"logits": logits.flip(-1), "correction_bias": None if bias is None else bias.flip(0)})
    return weights, torch.where(ids >= 0, logits.shape[1] - 1 - ids, ids)


def slips(reference: Reference) -> dict[str, Reference]:
    return {
        "scores were sigmoids, not a softmax": but(reference, scoring="sigmoid"),
        "scores were a softmax, not sigmoids": but(reference, scoring="softmax"),
        "of equal experts the last were chosen": partial(_last_of_equals, reference),
        "weights were not divided by their sum": but(reference, renormalize=False),
        "weights were always divided by their sum": but(reference, renormalize=True),
        "scaling_factor were 1": but(reference, scaling_factor=1.0),
        "there were no correction_bias": but(reference, correction_bias=None),
        "correction_bias came to the weights too, not to the choice alone": partial(_bias_weighs, reference),
        "all groups of experts took part": but(reference, num_expert_group=1, topk_group=1),
    }
