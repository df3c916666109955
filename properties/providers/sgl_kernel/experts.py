"""Mixtures of experts, and the expert that all tokens share. Limits are those of the operators' own checks and of their callers:
UnquantizedFusedMoEMethod, W8A8Int8MoEMethod, Fp8MoEMethod and DeepseekV2MoE.forward_cpu."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Unsupported, adapts, fitted, other_layouts
from properties.fused_moe.cases import FP8_LAYOUT, INT8_LAYOUT, MoeCase
from properties.providers.sgl_kernel.calling import call, takes
from reference.fused_moe import LAYOUTS, PackedExperts, PackedFp8Experts, PackedInt8Experts

PLACED = ("x", "w13", "w2", "topk_weights", "topk_ids", "b13", "b2", "routed", "w13_scale", "w2_scale")
OFFSET = {name: ("offset",) for name in PLACED}
PANEL = 32  # columns ("invalid weight input features"), and outputs of a block
BLOCK = "128x128"
UNQUANT, INT8_W8A8, FP8_W8A16 = range(3)  # CPUQuantMethod


def _fit(case: MoeCase) -> MoeCase:
    D, inner = (-(-size // PANEL) * PANEL for size in (case.D, case.I))
    biased = not case.int8 and bool(case.b13 or case.b2)
    wanted: MoeCase = fitted(
        case, ["bfloat16"], OFFSET, ("topk_ids",), tokens=max(case.tokens, 1), topk=max(case.topk, 1), D=D, I=inner,
        b13=(case.b13 or "float32") if biased else "", b2=(case.b2 or "float32") if biased else "",
        block=case.block and BLOCK, route="random" if case.route == "pads" else case.route,
        on_input=case.on_input and case.topk <= 1,
    )
    return wanted


@adapts(
    "fused_moe",
    limits={
        "dtype bfloat16 (its one kernel of bytes and of float8; float16 needs AMX-FP16)": lambda case: case.dtype != "bfloat16",
        "at least one token and one expert a token (a layer has them)": lambda case: case.pairs == 0,
        "D and I are multiples of 32 (checked)": lambda case: bool(case.D % PANEL or case.I % PANEL),
        "no pads (num_token_non_padded must be None: topk.py)": lambda case: case.route == "pads",
        "both biases or none (parameters of one layer)": lambda case: bool(case.b13) != bool(case.b2),
        "no biases of experts of bytes (their layer passes none)": lambda case: case.int8 and bool(case.b13 or case.b2),
        "blocks of 128 columns and a multiple of 32 outputs (checked)": lambda case: case.block not in ("", BLOCK),
        "topk_ids int32 (checked)": lambda case: case.form == "moe" and "topk_ids" not in case.int32,
        "all tensors are contiguous (checked for x; so do its callers hold the others)": other_layouts(OFFSET),
    },
    fit=_fit,
    silent={"pads": "it has none"},
    timed=lambda given: {"fused_experts_cpu" if given["form"] == "moe" else "shared_expert_cpu": _call(given)},
)
def fused_moe(**given: Any) -> Tensor:
    """fused_experts_cpu and shared_expert_cpu behind convert_weight_packed"""
    return _call(given)()


def _stack(given: Mapping[str, Any], name: str, N: int, K: int) -> Tensor:
    """The weights [E, N, K] as a checkpoint holds them."""
    data, scale = given[name], given.get(f"{name}_scale")
    if scale is None:
        return PackedExperts(data, LAYOUTS[2], len(data), N, K).unpack()
    if f"{name}_sums" in given:
        return PackedInt8Experts(data, given[f"{name}_sums"], scale, INT8_LAYOUT, len(data), N, K).unpack()
    block = given[f"{name}_block_n"], given[f"{name}_block_k"]
    if block[0] % PANEL or block[1] != 128:
        raise Unsupported("blocks of 128 columns and a multiple of 32 outputs (checked)")
    return PackedFp8Experts(data, scale, FP8_LAYOUT, len(data), N, K, block).unpack()


def _method(given: Mapping[str, Any]) -> int:
    return INT8_W8A8 if "w13_sums" in given else FP8_W8A16 if "w13_block_n" in given else UNQUANT


def _call(given: Mapping[str, Any]) -> Callable[[], Tensor]:
    """The call with weights that are packed once."""
    D, inner, method, shared = given["D"], given["I"], _method(given), given["form"] == "shared"
    if D % PANEL or inner % PANEL:
        raise Unsupported("D and I are multiples of 32 (checked)")
    stacks = [_stack(given, "w13", 2 * inner, D), _stack(given, "w2", D, inner)]
    w1, w2 = (call("convert_weight_packed", weight=stack[0] if shared else stack) for stack in stacks)
    scales = [given.get(f"{name}_scale") for name in ("w13", "w2")]
    if shared:
        scales = [scale if scale is None else scale[0] for scale in scales]
    block = [given["w13_block_n"], given["w13_block_k"]] if method == FP8_W8A16 else None
    name = "shared_expert_cpu" if shared else "fused_experts_cpu"
    common = {"hidden_states": given["x"], "w1": w1, "w2": w2, "inplace": False, "w1_scale": scales[0], "w2_scale": scales[1],
              "block_size": block, "a1_scale": None, "a2_scale": None, "is_vnni": True, **_named(name, method)}
    rest = _shared(given) if shared else _routed(given)
    return lambda: call(name, **(common | rest()))


def _named(name: str, method: int) -> dict[str, Any]:
    """How this version is told which weights they are."""
    if takes(name, "moe_comp_method"):
        return {"moe_comp_method": method}
    return {"use_int8_w8a8": method == INT8_W8A8, "use_fp8_w8a16": method == FP8_W8A16}


def _shared(given: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    routed = given["routed"]
    factor = None if routed is None else given["routed_scaling_factor"]
    return lambda: {"fused_experts_out": routed, "routed_scaling_factor": factor}


def _routed(given: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    """Experts and their weights; the weights on the input as `apply_topk_weights_cpu` puts them there."""
    x, weights, ids = given["x"], given["topk_weights"], given["topk_ids"]
    b13, b2 = (None if bias is None else bias.float() for bias in (given.get("b13"), given.get("b2")))
    if (b13 is None) != (b2 is None) or (b13 is not None and _method(given) == INT8_W8A8):
        raise Unsupported("both biases or none, and none of experts of bytes")
    if ids.numel() and int(ids.min()) < 0:
        raise Unsupported("no pads")
    biases = {"w1_bias": b13, "w2_bias": b2, "alpha": None, "limit": None, "w1_zero": None, "w2_zero": None}
    if not given["apply_router_weight_on_input"]:
        return lambda: {"topk_weights": weights, "topk_ids": ids, **biases}
    ones = torch.ones_like(weights)
    return lambda: {"hidden_states": x * weights.to(x.dtype), "topk_weights": ones, "topk_ids": ids, **biases}
