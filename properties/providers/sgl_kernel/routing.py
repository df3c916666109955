"""Routers. Limits are those of the operators' own checks and of their callers in `layers/moe/topk.py`: fused_topk_cpu, which
has no groups, grouped_topk_cpu and biased_grouped_topk_cpu."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.providers.sgl_kernel.calling import call, takes
from properties.topk_gating.bound import ANY_ORDER
from properties.topk_gating.cases import TopkCase

EXPERTS = {  # that the operators are compiled for
    "plain": (1, 2, 4, 8, 16, 32, 64, 128, 160, 256, 384, 512),
    "grouped": (1, 2, 4, 8, 16, 32, 64, 128, 160, 256),
    "biased": (128, 192, 256, 384),
}
MOST_OF_OLD_SIGMOID = 256
DENSE = {"logits": ("offset",), "correction_bias": ("offset",)}


def _kind(case: TopkCase) -> str:
    return "plain" if case.groups == 1 else "grouped" if case.bias == "none" else "biased"


def _fit_topk(case: TopkCase) -> TopkCase:
    groups = case.groups if case.groups in (1, 2, 4, 8) else 8
    kind = _kind(replace(case, groups=groups))
    known = [size for size in EXPERTS[kind] if size % groups == 0]
    experts, kept = known[case.seed % len(known)], min(case.kept, groups)
    topk = 8 if kind == "biased" else min(case.topk, kept * (experts // groups))
    if topk > kept * (experts // groups):
        kept = groups
    wanted: TopkCase = fitted(
        case, ["bfloat16", "float16"] if kind == "grouped" else (), DENSE, experts=experts, groups=groups, kept=kept, topk=topk,
        scoring=case.scoring if kind == "plain" else "sigmoid" if kind == "biased" else "softmax",
        scaling=case.scaling if kind == "biased" else 1.0, pads=None,
    )
    return wanted


@adapts(
    "topk_gating",
    limits={
        "groups without a bias: dtype bfloat16 or float16 (its dispatch)":
            lambda case: _kind(case) == "grouped" and case.dtype == "float32",
        "numbers of experts that the operators are compiled for (checked)":
            lambda case: case.experts not in EXPERTS[_kind(case)],
        "groups: with a bias sigmoid and 8 experts of a token, without one softmax (checked; grouped_topk_cpu)":
            lambda case: (_kind(case) == "biased" and (case.scoring, case.topk) != ("sigmoid", 8))
            or (_kind(case) == "grouped" and case.scoring == "sigmoid"),
        "a scale with groups and a bias alone (checked; fused_topk_cpu)":
            lambda case: case.scaling != 1.0 and _kind(case) != "biased",
        "no pads (num_token_non_padded must be None: checked)": lambda case: case.pads is not None,
        "logits and bias are contiguous (checked)": other_layouts(DENSE),
    },
    fit=_fit_topk,
    rounding=ANY_ORDER,
)
def topk_gating(
    logits: Tensor, topk: int, scoring: str = "softmax", renormalize: bool = True, correction_bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, scaling_factor: float = 1.0, num_valid: int | None = None,
) -> tuple[Tensor, Tensor]:
    """topk_softmax_cpu, topk_sigmoid_cpu, grouped_topk_cpu or biased_grouped_topk_cpu"""
    biased = correction_bias is not None
    if num_valid is not None or (scaling_factor != 1.0 and not (biased and num_expert_group > 1)):
        raise Unsupported("no pads, a scale with groups and a bias alone")
    common = {"hidden_states": logits, "gating_output": logits, "topk": topk, "renormalize": renormalize}
    if num_expert_group == 1:
        return _plain(scoring, common, correction_bias)
    factor = scaling_factor if scaling_factor != 1.0 else None
    groups = {"num_expert_group": num_expert_group, "topk_group": topk_group, "num_fused_shared_experts": 0,
              "routed_scaling_factor": factor, "num_token_non_padded": None}
    named = {"correction_bias": correction_bias} if biased else {}
    weights, ids = call("biased_grouped_topk_cpu" if biased else "grouped_topk_cpu", **common, **groups, **named)
    return weights, ids


def _plain(scoring: str, common: dict[str, Any], bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Without groups. Versions whose operators take no bias take no logits in float32 either, and with sigmoid one expert of 256
    at most."""
    name = f"topk_{scoring}_cpu"
    old = not takes(name, "correction_bias")
    if old and (common["gating_output"].dtype == torch.float32 or (scoring == "sigmoid" and common["topk"] > 1)):
        raise Unsupported("this version takes no logits in float32, and one expert a token with sigmoid")
    if old and scoring == "sigmoid" and common["gating_output"].shape[1] > MOST_OF_OLD_SIGMOID:
        raise Unsupported("this version is compiled for 256 experts at most with sigmoid")
    weights, ids = call(name, **common, correction_bias=None if bias is None else bias.to(torch.float32))
    return weights, ids
