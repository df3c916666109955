"""fused_moe: calls that both sides refuse."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelpair.contract.pair import Inputs, WrongCall
from properties.fused_moe.cases import MoeCase
from properties.shared.wrong_calls import (
    INF,
    any_of,
    beside_wide,
    cast,
    changed,
    entry,
    grown,
    larger,
    made,
    no_index,
    one_rank_more,
    other_dtype,
    other_half,
    replaced,
    setting,
    sparse,
)
from reference.fused_moe import PackedExperts


def _moe(case: Any) -> bool:
    return bool(case.form == "moe")


def _shared(case: Any) -> bool:
    return bool(case.form == "shared")


def _coded(case: Any) -> bool:
    return bool(case.block)


def _quantized(case: Any) -> bool:
    return bool(case.int8 or case.block)


def _one_id(value: int, past: bool = False) -> Any:
    """An id out of range: `value`, counted from the number of experts if `past`."""

    def pick(case: MoeCase, given: Inputs) -> tuple[tuple[int, int], int] | None:
        if not case.pairs:
            return None
        token, choice = divmod(any_of(case, range(case.tokens * case.topk)), case.topk)
        return (token, choice), value + (case.experts if past else 0)

    return entry("topk_ids", pick, IndexError, when=_moe)


def _raw(name: str) -> Any:
    return made(lambda case, given: given | {"layout": None}, TypeError, name)


def _no_block(name: str) -> Any:
    """The scales have as many rows and columns as there are blocks, of which these are none."""
    scale = name.split("_")[0] + "_scale"
    return made(lambda case, given: given | {name: -(case.seed % 2)}, ValueError, name, scale, when=_coded)


def _routed(name: str, change: Callable[[Any], Any]) -> WrongCall:
    """What was routed or its factor, changed; where the case has nothing routed, x is."""

    def make(case: MoeCase, given: Inputs) -> Inputs:
        given = given if case.routed else given | {"routed": given["x"]}
        return given | {name: change(given[name])}

    return made(make, ValueError, name, when=_shared)


def _more_inner(case: MoeCase, given: Inputs) -> Inputs:
    return given | {"I": case.I + 32}


def _not_one_column(case: MoeCase, given: Inputs) -> Inputs | None:
    if case.topk == 1:
        return None
    return given | {"apply_router_weight_on_input": True}


def _another_expert(case: MoeCase, given: Inputs) -> Inputs:
    return given | {name: given[name].repeat_interleave(2, dim=0) for name in ("w13", "w2")}


def _no_expert(case: MoeCase, given: Inputs) -> Inputs:
    """Stacks of nothing, and nobody who asks for an expert."""
    ids = torch.full_like(given["topk_ids"], -1)
    return given | {name: given[name][:0] for name in (*OF_EXPERTS, "b13", "b2") if isinstance(given.get(name), Tensor)} | {
        "topk_ids": ids
    }


def _down_of_numbers(case: MoeCase, given: Inputs) -> Inputs:
    """w2 in x's dtype beside a quantized w13."""
    stack = PackedExperts.pack(torch.zeros(case.experts, case.D, case.I, dtype=getattr(torch, case.dtype)))
    return {name: value for name, value in given.items() if not name.startswith("w2")} | {"w2": stack.data}


ON_INPUT = ("apply_router_weight_on_input", "topk_ids", "topk_weights")
OF_EXPERTS = ("w13", "w13_sums", "w13_scale", "w2", "w2_sums", "w2_scale")
OF_I = ("w13", "w13_sums", "w13_scale", "w2", "w2_scale", "b13")  # what has a size that goes by I
WRONG_CALLS = {
    "x_rank": one_rank_more("x"),
    "x_columns": grown("x", 1, "w13", "w2"),
    "x_fewer": changed("x", lambda x: x[:, 1:] if x.shape[1] > 1 else None, ValueError, "w13", "w2"),
    "x_integers": beside_wide(cast("x", torch.int32, "w13", "w2"), "b13", "b2"),
    "x_strides": sparse("x"),
    "x_none": replaced("x", None, TypeError),
    "x_dtype": beside_wide(other_dtype("x", "w13", "w2", when=lambda case: not _quantized(case)), "b13", "b2"),
    "w13_rank": changed("w13", lambda data: data[0], ValueError, "w2"),
    "w13_dtype": other_dtype("w13", "x", "w2"),
    "w13_integers": cast("w13", torch.int8, "x", "w2"),
    "w2_dtype": other_dtype("w2", "x", "w13"),
    "w2_experts": grown("w2", 0, "w13", "b2", "w2_sums", "w2_scale"),
    "w13_experts": grown("w13", 0, "w2", "b13", "b2", "topk_ids", "w13_sums", "w13_scale"),
    "no_columns": made(lambda case, given: given | {"x": given["x"][:, :0], "D": 0}, ValueError, "x", *OF_EXPERTS, "b2"),
    "no_expert": made(_no_expert, ValueError, *OF_EXPERTS, when=_moe),
    "w13_panels": grown("w13", 1),
    "w2_blocks": grown("w2", 2),
    "sums_width": grown("w13_sums", 1),
    "sums_dtype": cast("w2_sums", torch.int64),
    "scale_experts": grown("w2_scale", 0),
    "scale_dtype": cast("w13_scale", torch.bfloat16),
    "scale_none": replaced("w2_scale", None, TypeError, when=_quantized),
    "scale_outputs": grown("w13_scale", 1),
    "scale_columns": grown("w2_scale", 2, when=_coded),
    **{name: _no_block(name) for name in ("w13_block_n", "w13_block_k", "w2_block_n", "w2_block_k")},
    "kinds_mixed": made(_down_of_numbers, TypeError, "w13", "w2", when=_quantized),
    "weights_plain": _raw("w13"),
    "I_more": made(_more_inner, ValueError, *OF_I),
    "w13_odd": made(setting(odd=1), ValueError, *OF_I),
    "I_zero": made(setting(I=0), ValueError, *OF_I, "I"),
    "layout_unknown": made(setting(layout="nib2-n32k32"), ValueError, "layout"),
    "ids_floats": no_index("topk_ids"),
    "ids_rank": changed("topk_ids", lambda ids: ids[None], ValueError, "topk_weights"),
    "ids_rows": grown("topk_ids", 0, "x", "topk_weights"),
    "ids_below": _one_id(-2),
    "ids_above": _one_id(0, past=True),
    "ids_far": _one_id(2**31 - 1),
    "weights_columns": grown("topk_weights", 1, "topk_ids"),
    "weights_dtype": cast("topk_weights", torch.bfloat16),
    "weights_none": replaced("topk_weights", None, TypeError, when=_moe),
    "on_input_of_many": made(_not_one_column, ValueError, *ON_INPUT, when=_moe),
    "b13_width": grown("b13", 1),
    "b13_integers": cast("b13", torch.int32),
    "b13_strides": sparse("b13"),
    "b2_experts": grown("b2", 0),
    "b2_rank": one_rank_more("b2"),
    "routed_rows": _routed("routed", larger(0)),
    "routed_columns": _routed("routed", larger(1)),
    "routed_dtype": other_dtype("routed", "x"),
    "routed_strides": sparse("routed"),
    "factor_infinite": _routed("routed_scaling_factor", lambda _: INF),
    "factor_too_large": _routed("routed_scaling_factor", lambda _: -1e39),
    "shared_by_two": made(_another_expert, ValueError, *OF_EXPERTS, when=_shared),
    "b13_other_half": other_half("b13"),
    "b2_other_half": other_half("b2"),
}
