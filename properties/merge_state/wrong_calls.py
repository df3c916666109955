"""merge_state: calls that both sides refuse."""

from typing import Any

import torch

from kernelpair.contract.pair import Inputs, WrongCall
from properties.shared.wrong_calls import (
    INF,
    NAN,
    all_integers,
    any_of,
    cast,
    changed,
    grown,
    made,
    one_rank_more,
    other_dtype,
    replaced,
    sparse,
)


def _with_entry(name: str, value: float) -> WrongCall:
    """One head is wrong, in every row, for they may share their memory."""

    def make(case: Any, given: Inputs) -> Inputs | None:
        wrong = given[name].clone()
        if not wrong.numel():
            return None
        wrong[:, any_of(case, range(wrong.shape[1]))] = value
        return given | {name: wrong}

    return made(make, ValueError, name)


def _turned(lse: torch.Tensor) -> torch.Tensor | None:
    """[H, T] instead of [T, H]."""
    return None if lse.shape[0] == lse.shape[1] else lse.mT.contiguous()


WRONG_CALLS = {
    "v_a_rank": one_rank_more("v_a"),
    "v_b_rank": changed("v_b", lambda v: v.reshape(-1), ValueError),
    "lse_a_rank": one_rank_more("lse_a"),
    "v_b_rows": grown("v_b", 0, "v_a"),
    "v_b_heads": grown("v_b", 1, "v_a"),
    "v_b_width": grown("v_b", 2, "v_a"),
    "lse_a_rows": grown("lse_a", 0, "v_a"),
    "lse_b_heads": grown("lse_b", 1, "v_a"),
    **{f"{name}_turned": changed(name, _turned, ValueError, "v_a") for name in ("lse_a", "lse_b")},
    "v_b_dtype": other_dtype("v_b", "v_a"),
    "v_a_integers": cast("v_a", torch.int64, "v_b"),
    "all_integers": all_integers("v_a", "v_b"),
    "lse_a_dtype": cast("lse_a", torch.bfloat16),
    "lse_b_dtype": cast("lse_b", torch.float64),
    "v_a_strides": sparse("v_a"),
    "v_b_strides": sparse("v_b"),
    "v_a_none": replaced("v_a", None, TypeError),
    "lse_b_none": replaced("lse_b", None, TypeError),
    "lse_a_nan": _with_entry("lse_a", NAN),
    "lse_b_infinite": _with_entry("lse_b", INF),
}
