"""Mixtures of experts by zentorch, of floats and of bytes. Limits are those of `zentorch_fused_moe`'s own checks, of the input
contract that it states, and of its caller, CPUInt8Experts."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.providers.provider import Calls, Unsupported, adapts, fitted, other_layouts
from properties.fused_moe.bound import ROUNDED_H
from properties.fused_moe.cases import INT8_LAYOUT, MoeCase
from properties.providers.zentorch.library import FLOATS, OPS, Given
from reference.fused_moe import PackedExperts, PackedInt8Experts

LAYOUTS = {name: ("offset",) for name in ("x", "w13", "w2", "topk_weights", "topk_ids", "b13", "b2", "w13_scale", "w2_scale")}
WORD = 4  # bytes that a product of the kernel takes at once
TWO = "experts of float32: tokens go to more than one (checked)"
WORDS = "D and I of bytes are multiples of 4 (checked)"


def _fit(case: MoeCase) -> MoeCase:
    step = WORD if case.int8 else 1
    D, inner = (-(-size // step) * step for size in (case.D, case.I))
    wanted: MoeCase = fitted(
        case, ["bfloat16"] if case.int8 else FLOATS, LAYOUTS, ("topk_ids",), form="moe", block="", block2="", routed=False,
        factor=1.0, tokens=max(case.tokens, 1), topk=max(case.topk, 1), D=D, I=inner, b13=case.b13 and "call",
        b2=case.b2 and "call", route="random" if case.route == "pads" else case.route,
    )  # fmt: skip
    if not _one_of_float32(wanted):
        return wanted
    two: MoeCase = replace(wanted, experts=max(wanted.experts, 2), topk=2, on_input=False, route="ascending",
                           values="uniform" if wanted.values == "one_hot" else wanted.values)  # fmt: skip
    return two


def _one_of_float32(case: MoeCase) -> bool:
    """Whether all tokens may go to one expert."""
    one = case.experts == 1 or case.pairs == 1 or case.route == "constant" or (case.route == "twice" and case.tokens == 1)
    return one and case.dtype == "float32"


def _stack(given: Given, name: str, N: int, K: int) -> Tensor:
    """The weights [E, N, K] as a checkpoint holds them."""
    data = given[name]
    if f"{name}_sums" not in given:
        return PackedExperts(data, "", len(data), N, K).unpack()
    parts = given[f"{name}_sums"], given[f"{name}_scale"]
    return PackedInt8Experts(data, *parts, INT8_LAYOUT, len(data), N, K).unpack()


def _call(given: Given) -> Any:
    """The call, ready to be made again and again. The result is not initialized: callers hand over such memory, too."""
    x, D, inner, weights = given["x"], given["D"], given["I"], given["topk_weights"]
    if given["form"] != "moe" or "w13_block_n" in given or x.dtype == torch.float16:
        raise Unsupported("routed experts of float32, bfloat16 or bytes")
    if "w13_sums" in given and (D % WORD or inner % WORD):
        raise Unsupported(WORDS)
    if x.dtype == torch.float32 and len(given["topk_ids"].unique()) == 1:
        raise Unsupported(TWO)
    stacks = [_stack(given, "w13", 2 * inner, D).contiguous(), _stack(given, "w2", D, inner).contiguous()]
    biases, scales = ([given.get(name) for name in names] for names in (("b13", "b2"), ("w13_scale", "w2_scale")))
    if x.dtype == torch.float32:
        # It knows a bias by its address and holds its storage: not that of the trial, whose memory is used again.
        biases = [bias if bias is None else bias.clone() for bias in biases]
    on_input = given["apply_router_weight_on_input"]

    def run() -> Tensor:
        rows, out = x * weights.to(x.dtype) if on_input else x, torch.empty_like(x)
        OPS.zentorch_fused_moe(out, rows, *stacks, *biases, weights, given["topk_ids"], on_input, "silu", *scales)
        return out

    return run


def _timed(given: Given) -> Calls:
    return {"fused_moe": _call(given)}


@adapts(
    "fused_moe",
    limits={
        "not the shared expert (no operator for it)": lambda case: case.form != "moe",
        "experts of floats or of bytes (not of float8)": lambda case: bool(case.block),
        "dtype float32 or bfloat16 (its input contract)": lambda case: case.dtype not in FLOATS,
        "dtype bfloat16 with experts of bytes (checked)": lambda case: case.int8 and case.dtype != "bfloat16",
        TWO: _one_of_float32,
        WORDS: lambda case: case.int8 and bool(case.D % WORD or case.I % WORD),
        "at least one token and one expert a token (checked)": lambda case: case.pairs == 0,
        "no pads (its input contract; its caller clears them)": lambda case: case.route == "pads",
        "biases in x's dtype (its input contract)": lambda case: case.dtype != "float32" in (case.b13, case.b2),
        "topk_ids int32 (its input contract)": lambda case: "topk_ids" not in case.int32,
        "all tensors are contiguous (its input contract)": other_layouts(LAYOUTS),
    },
    fit=_fit,
    silent={"pads": "it has none", "nothing": "no shared form"},
    rounding=ROUNDED_H,
    timed=_timed,
)
def fused_moe(**given: Any) -> Tensor:
    """zentorch_fused_moe on plain weights"""
    given.setdefault("b13", None)
    given.setdefault("b2", None)
    result: Tensor = _call(given)()
    return result
