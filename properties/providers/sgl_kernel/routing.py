"""Routers. Limits are those of the operators' own checks and of their callers in `layers/moe/topk.py`."""

from dataclasses import replace

from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.providers.sgl_kernel.calling import call
from properties.topk_gating.bound import ANY_ORDER
from properties.topk_gating.cases import TopkCase

PLAIN = (1, 2, 4, 8, 16, 32, 64, 128, 160, 256, 384, 512)  # experts that topk_softmax_cpu and topk_sigmoid_cpu dispatch on
GROUPED = tuple(size for size in PLAIN if size <= 256 and size != 160)  # grouped_topk_cpu
BIASED = (128, 192, 256, 384)  # biased_grouped_topk_cpu
DENSE = {"logits": ("offset",), "correction_bias": ("offset",)}


def _experts(case: TopkCase) -> tuple[int, ...]:
    return BIASED if case.bias != "none" else PLAIN if case.groups == 1 else GROUPED


def _fit_topk(case: TopkCase) -> TopkCase:
    biased, groups = case.bias != "none", case.groups if case.groups in (1, 2, 4, 8) else 8
    known = [size for size in _experts(replace(case, groups=groups)) if size % groups == 0 and size // groups >= 1]
    experts, kept = known[case.seed % len(known)], min(case.kept, groups)
    topk = 8 if biased else min(case.topk, kept * (experts // groups))
    if biased and topk > kept * (experts // groups):
        kept = groups
    sigmoid = biased or (topk == 1 and groups == 1 and case.scoring == "sigmoid")
    wanted: TopkCase = fitted(
        case, () if biased else ("bfloat16", "float16"), DENSE, experts=experts, groups=groups, kept=kept, topk=topk,
        scoring="sigmoid" if sigmoid else "softmax", scaling=1.0, pads=None,
    )
    return wanted


@adapts(
    "topk_gating",
    limits={
        "dtype bfloat16 or float16, float32 with a bias (its dispatch)":
            lambda case: case.dtype == "float32" and case.bias == "none",
        "numbers of experts that the operators are compiled for (checked)": lambda case: case.experts not in _experts(case),
        "with a bias sigmoid and 8 experts of a token; without one softmax, or sigmoid for 1 of one group (checked)":
            lambda case: (case.scoring, case.topk) != ("sigmoid", 8) if case.bias != "none"
            else case.scoring == "sigmoid" and (case.topk, case.groups) != (1, 1),
        "no scale (it is for shared experts)": lambda case: case.scaling != 1.0,
        "no pads": lambda case: case.pads is not None,
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
    logits = logits.contiguous()
    if scaling_factor != 1.0 or num_valid is not None:
        raise Unsupported("no scale, no pads")
    common = {"hidden_states": logits, "gating_output": logits, "topk": topk, "renormalize": renormalize}
    groups = {"num_expert_group": num_expert_group, "topk_group": topk_group, "num_fused_shared_experts": 0,
              "routed_scaling_factor": None, "num_token_non_padded": None}
    if correction_bias is not None:
        found = call("biased_grouped_topk_cpu", **common, **groups, correction_bias=correction_bias)
    elif num_expert_group > 1:
        found = call("grouped_topk_cpu", **common, **groups)
    else:
        found = call(f"topk_{scoring}_cpu", **common)
    weights, ids = found
    return weights, ids
