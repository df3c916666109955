"""linear_modules: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.backends.experts
import optimized.backends.linear
import optimized.fused_moe
import reference.backends.experts
import reference.backends.linear
import reference.fused_moe
from kernelpair.call.layout import READ_ONLY
from kernelpair.call.values import uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from optimized.workspace import Workspace
from properties.scenarios.linear_modules.wrong import answered_otherwise
from properties.shared.strategies import choices, common

LAYOUTS = {"x": (*READ_ONLY, "transposed"), "weight": READ_ONLY, "bias": ("offset", "strided")}
OTHERS: tuple[tuple[tuple[int, ...], str], ...] = (  # weights that the dispatch meets in a model, and what it makes of them
    ((5,), "untouched"),
    ((3, 4, 5), "untouched"),
    ((6, 1, 4), "PackedConvWeight"),
    ((6, 1, 2), "PackedConvWeight"),
    ((6, 1, 5), "untouched"),
    ((6, 1, 1), "untouched"),
    ((1, 2, 3, 4), "untouched"),
    ((), "untouched"),
    ((7, 33), "PackedWeight"),
    ((0, 4), "untouched"),
)
UNPACKED = {"int8": torch.int8, "float8": torch.float8_e4m3fn, "float64": torch.float64}
"""Dtypes that the dispatch leaves as they are."""


@dataclass(frozen=True, kw_only=True)
class LinearModulesCase(Case):
    """A layer of N outputs, x of the shape rows + [K]; another weight for the dispatch; sizes that the workspace is asked for."""

    rows: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    bias: Literal["loaded", "never loaded", "none"] = "never loaded"
    other: int = 0
    """Which of OTHERS."""
    other_kind: Literal["call", "int8", "meta", "float8", "float64"] = "call"
    sizes: tuple[int, ...] = ()
    loads: Literal["once", "again", "refused"] = "once"
    """`again`: another weight is loaded before, with the bias; `refused`: another one after, with a bias that is none."""


OPTIONS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "rows": ((1,), (), (3,), (2, 1, 3), (0,), (2, 0), (1, 2, 1, 2)),
    "N": (1, 7, 16, 33, 64),
    "K": (1, 2, 31, 33, 96),
    "bias": ("never loaded", "loaded", "none"),
    "other": tuple(range(len(OTHERS))),
    "other_kind": ("call", "call", "int8", "meta", "float8", "float64"),
    "loads": ("once", "again", "refused"),
}
SIZES = st.lists(st.sampled_from((0, 1, 64, 100, 4096, 5000, 2 << 20)), max_size=5).map(tuple)


@st.composite
def strategy(draw: st.DrawFn) -> LinearModulesCase:
    """Any layer, weight and sequence of sizes."""
    options, fields = draw(choices(OPTIONS)), draw(st.fixed_dictionaries(common(LAYOUTS, ())))
    return LinearModulesCase(sizes=draw(SIZES, label="sizes"), **options, **fields)


def inputs(case: LinearModulesCase) -> Inputs:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return {
        "dtype": case.dtype,
        "x": uniform(case.seed, "x", (*case.rows, case.K), dtype),
        "weight": uniform(case.seed, "weight", (case.N, case.K), dtype),
        "bias": uniform(case.seed, "bias", (case.N,), dtype) if case.bias == "loaded" else None,
        "other": uniform(case.seed, "other", OTHERS[case.other][0], dtype),
        "other_kind": case.other_kind,
        "has_bias": case.bias != "none",
        "sizes": case.sizes,
        "loads": case.loads,
    }


def _modules(side: Any, experts: Any, stacks: Any, workspace: Callable[[], Any]) -> Callable[..., dict[str, Any]]:
    def run(
        dtype: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        other: Tensor,
        other_kind: str,
        has_bias: bool,
        sizes: tuple[int, ...],
        loads: str,
    ) -> dict[str, Any]:
        """A linear layer, the form that the dispatch gives weights, and the life of a workspace. Where the truth is float64 the
        dispatch gets its weights in the call's dtype, which holds them."""
        linear = side.Linear(weight.shape[1], weight.shape[0], bias=has_bias, dtype=weight.dtype)
        if loads == "again":
            lent = None if bias is None else bias.clone()
            linear.load(-weight, lent)
            if lent is not None:
                lent.fill_(torch.nan)  # it is the caller's again
        linear.load(weight, None if loads == "again" else bias)
        refused = loads == "refused" and _refused(lambda: linear.load(-weight, weight.new_zeros(len(weight) + 1)))
        call: torch.dtype = getattr(torch, dtype)
        asked = other.to("meta") if other_kind == "meta" else other.to(UNPACKED.get(other_kind, call))
        packed, made = side.make_linear_dispatch(weight.to(call)), side.make_linear_dispatch(asked)
        kind = "untouched" if made is asked else type(made).__name__
        found = {"out": linear(x), "weight": packed.unpack(), "kind": kind, "workspace": _asked(workspace(), sizes)}
        found |= {"refused": refused, "answered_otherwise": answered_otherwise(side, experts, stacks)}
        if has_bias and bias is None:
            found["bias"] = linear.bias.clone()
        return found if kind == "untouched" else found | {"other": made.unpack()}

    return run


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except (TypeError, ValueError):
        return True
    return False


def _asked(workspace: Any, sizes: tuple[int, ...]) -> list[tuple[int, int, bool]]:
    """For each size: what came back, the capacity then, and whether the address stayed where it was."""
    found, address = [], 0
    for size in sizes:
        buffer = workspace.get(size)
        found.append((buffer.numel(), workspace.capacity, buffer.data_ptr() == address))
        address = buffer.data_ptr() if workspace.capacity else 0
    return found


class GrowOnly:
    """What a workspace's capacity and address must do: a buffer's own address stands for one that never changes."""

    def __init__(self) -> None:
        self.capacity, self._held = 0, torch.empty(0, dtype=torch.uint8)

    def get(self, nbytes: int) -> Tensor:
        if nbytes > self.capacity:
            self._held, self.capacity = torch.zeros(nbytes, dtype=torch.uint8), nbytes
        return self._held[:nbytes]


run_reference = _modules(reference.backends.linear, reference.backends.experts, reference.fused_moe, GrowOnly)
run_optimized = _modules(optimized.backends.linear, optimized.backends.experts, optimized.fused_moe, Workspace)
EDGES: dict[str, Callable[[Any], bool]] = {
    "a bias that is never loaded": lambda case: case.bias == "never loaded",
    "a weight that takes another's place": lambda case: case.loads == "again" and case.bias == "loaded",
    "a weight that is refused": lambda case: case.loads == "refused" and case.bias != "none",
    "no rows": lambda case: 0 in case.rows,
    "x of one dimension": lambda case: case.rows == (),
    "a norm": lambda case: OTHERS[case.other][0] == (5,) and case.other_kind == "call",
    "a stack of experts": lambda case: OTHERS[case.other][0] == (3, 4, 5) and case.other_kind == "call",
    "a convolution": lambda case: OTHERS[case.other][1] == "PackedConvWeight" and case.other_kind == "call",
    "a weight without data": lambda case: case.other_kind == "meta",
    "integers": lambda case: case.other_kind == "int8",
    "a matrix of codes": lambda case: case.other_kind == "float8" and OTHERS[case.other][1] == "PackedWeight",
    "a matrix of float64": lambda case: case.other_kind == "float64" and OTHERS[case.other][1] == "PackedWeight",
    "a workspace asked for less": lambda case: any(a > b for a, b in zip(case.sizes, case.sizes[1:])),
}
