"""fused_moe: how both sides are called."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import optimized.fused_moe as optimized
import reference.fused_moe as reference
from kernelpair.contract.pair import Inputs
from properties.fused_moe.cases import ANY_LAYOUT, FP8_LAYOUT, INT8_LAYOUT, PARTS
from properties.shared.packed_weights import made_again
from serving import PackedExperts, PackedFp8Experts, PackedInt8Experts


def _arguments(layout: str | None, **given: Any) -> Inputs:
    """Of a call, with both packed stacks that their parts make, with `kept` of their plain tensors again, `odd` rows of w13 too
    many; without a layout plain tensors in their places. There are as many experts as the stacks say."""
    D, inner, kept, odd = given.pop("D"), given.pop("I"), given.pop("kept", False), given.pop("odd", 0)
    made: dict[str, Any] = {}
    for name, N, K in (("w13", 2 * inner + odd, D), ("w2", D, inner)):
        parts = {part: given.pop(f"{name}_{part}") for part in PARTS if f"{name}_{part}" in given}
        made[name] = data = given.pop(name)
        if layout is not None and isinstance(data, Tensor):
            stack = _stack(data, parts, layout, (len(data) if data.dim() else 1, N, K))
            made[name] = made_again(stack) if kept else stack
    return given | made


def _stack(data: Tensor, parts: dict[str, Any], layout: str, sizes: tuple[int, int, int]) -> Any:
    """Of the kind that the parts belong to, with its own tag where no other one is asked for."""
    kind = INT8_LAYOUT if "sums" in parts else FP8_LAYOUT if "block_n" in parts else ANY_LAYOUT
    tag = kind if layout == ANY_LAYOUT else layout
    if kind == INT8_LAYOUT:
        return PackedInt8Experts(data, parts["sums"], parts["scale"], tag, *sizes)
    if kind == FP8_LAYOUT:
        return PackedFp8Experts(data, parts["scale"], tag, *sizes, (parts["block_n"], parts["block_k"]))
    return PackedExperts(data, tag, *sizes)


def call_reference(form: str, dtype: str, layout: str | None = ANY_LAYOUT, **given: Any) -> Tensor:
    """The reference with the packed weights' parts as arguments, so that each can be placed and made wrong. A router's weight on
    the input is rounded to the call's dtype by definition: for the truth, which has forgotten it, that is done here."""
    given = _arguments(layout, **given)
    if form == "shared":
        return reference.shared_expert(**given)
    x = given["x"]
    if given["apply_router_weight_on_input"] is True and isinstance(x, Tensor) and x.dtype == torch.float64:
        narrow: torch.dtype = getattr(torch, dtype)
        weights = given["topk_weights"]
        given = given | {
            "x": (x.to(narrow) * weights.to(narrow)).to(torch.float64),
            "topk_weights": torch.ones_like(weights),
            "apply_router_weight_on_input": False,
        }
    return reference.fused_moe(**given)


def call_optimized(form: str, dtype: str, layout: str | None = ANY_LAYOUT, **given: Any) -> Tensor:
    """The kernel, likewise."""
    function, said = optimized_call(form, dtype, layout, **given)
    return function(**said)


def optimized_call(
    form: str, dtype: str, layout: str | None = ANY_LAYOUT, **given: Any
) -> tuple[Callable[..., Tensor], Inputs]:
    """The kernel's function of a form, and its arguments with their packed experts."""
    return optimized.shared_expert if form == "shared" else optimized.fused_moe, _arguments(layout, **given)
