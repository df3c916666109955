"""packed_linear: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.packed_linear as optimized
import reference.packed_linear as reference
from kernelpair.call.layout import FAR_PARAMETERS, READ_ROWS
from kernelpair.call.values import generator, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared import linear_layers
from properties.shared.packed_weights import made_again
from properties.shared.strategies import any_of, around, common, together
from reference.pack_linear_weight import pack_linear_weight
from serving import PackedWeight

ROWS = (*range(1, 17), *around(32), 64, 101, 0)  # M
OUTPUTS = (1, 7, 12, *around(16), 24, *around(32, 48, 64), 416)  # N
DEPTHS = (1, 2, 3, *around(32, 64), 96, 512, 4099)  # K
DTYPES = ("float32", "bfloat16", "float16")
VALUES = ("uniform", "integers", "one_hot", "one_hot_x")
FAINT = 2.0**-40
SCALES = (1.0, 1e-3, 1e2, FAINT)
BEYOND = 14  # whole x times 2 to this power have sums that float16 does not hold
ANY_LAYOUT = "vnni2-n32k32"  # a known tag; the shape decides
LAYOUTS = {"x": (*READ_ROWS, "strided", "transposed"), "packed_weight": ("offset",), "bias": FAR_PARAMETERS}


@dataclass(frozen=True, kw_only=True)
class LinearCase(Case):
    """x [*outer, K] times W [N, K], plus a bias [N]."""

    outer: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    bias: str = ""
    """Its dtype; empty for none."""
    values: str = "uniform"
    """`integers`: small ones, at times times a power of 2, whose sums are exact; `one_hot`: rows of W that copy one column of x;
    `one_hot_x`: rows of x that copy one of W."""
    scale: float = 1.0
    """Of x; W stays below 1, so that nothing of it overflows in float16."""


FIELDS = together({**common(LAYOUTS, []), "dtype": st.sampled_from(DTYPES)})


@st.composite
def strategy(draw: st.DrawFn) -> LinearCase:
    """Any sizes within the budget, dtypes, strides and values."""
    fields = draw(FIELDS)
    outer, N, K = linear_layers.drawn_layer(draw, ROWS, OUTPUTS, DEPTHS)
    if fields["seed"] % 64 == 33:
        outer, N, K = (1 + fields["seed"] // 64 % 3,), min(N, 7), linear_layers.MANY
    return completed(draw, fields, outer, N, K)


def completed(draw: st.DrawFn, fields: dict[str, Any], outer: tuple[int, ...], N: int, K: int) -> LinearCase:
    """The case of these sizes, with values and a bias."""
    values = draw(any_of(*VALUES), label="values")
    scale = draw(any_of(*SCALES), label="scale") if values == "uniform" and K <= 512 else 1.0
    bias = draw(any_of("", *DTYPES), label="bias")
    if scale == FAINT and fields["dtype"] == "float16":  # which holds no such small numbers
        scale = 1.0
    return LinearCase(**linear_layers.fewer_apart(fields, outer), outer=outer, N=N, K=K, bias=bias, values=values, scale=scale)


def _weight(case: LinearCase, dtype: torch.dtype) -> Tensor:
    if case.values == "integers":
        return small_integers(case.seed, "weight", (case.N, case.K), dtype)
    if case.values == "one_hot":
        return _one_hot(case, "weight", (case.N, case.K), dtype)
    return uniform(case.seed, "weight", (case.N, case.K), dtype)


def _one_hot(case: LinearCase, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    chosen = torch.from_numpy(generator(case.seed, name).integers(0, shape[-1], size=shape[:-1]))
    return torch.nn.functional.one_hot(chosen, shape[-1]).to(dtype)


def _bias(case: LinearCase) -> Tensor | None:
    if not case.bias:
        return None
    dtype = getattr(torch, case.bias)
    if case.values == "uniform":
        return uniform(case.seed, "bias", (case.N,), dtype)
    if case.values != "integers":
        return torch.zeros(case.N, dtype=dtype)
    return small_integers(case.seed, "bias", (case.N,), dtype) * linear_layers.beyond(case.seed, BEYOND)


def inputs(case: LinearCase) -> Inputs:
    """Zero-mean data, so that single terms count against a small sum; or values whose sums are exact."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape = (*case.outer, case.K)
    if case.values == "integers":
        x = small_integers(case.seed, "x", shape, dtype) * linear_layers.beyond(case.seed, BEYOND)
    elif case.values == "one_hot_x":
        x = _one_hot(case, "x", shape, dtype)
    else:
        x = uniform(case.seed, "x", shape, dtype, scale=case.scale)
    packed = pack_linear_weight(_weight(case, dtype))
    return {"x": x, "packed_weight": packed, "N": case.N, "K": case.K, "bias": _bias(case)}


def arguments(layout: str | None = ANY_LAYOUT, **given: Any) -> Inputs:
    """Of a call, with the packed weight that its parts make, if `kept` of its plain tensors again; without a layout with a plain
    tensor in its place."""
    data, N, K = (given.pop(name) for name in ("packed_weight", "N", "K"))
    kept = given.pop("kept", False)
    if layout is None:
        return given | {"packed": data}
    packed = PackedWeight(data, layout, N, K)
    return given | {"packed": made_again(packed) if kept else packed}


def call_reference(layout: str | None = ANY_LAYOUT, **given: Any) -> Tensor:
    """The reference with the packed weight's parts as arguments, so that each can be placed and made wrong; without a layout the
    plain tensor takes the packed weight's place."""
    return reference.packed_linear(**arguments(layout, **given))


def call_optimized(layout: str | None = ANY_LAYOUT, **given: Any) -> Tensor:
    """The kernel, likewise."""
    return optimized.packed_linear(**arguments(layout, **given))


EDGES: dict[str, Callable[[Any], bool]] = {
    **linear_layers.EDGES,
    "N = 1": lambda case: case.N == 1,
    "K = 1": lambda case: case.K == 1,
    "tail of K": lambda case: case.K % 32 > 0,
    "more than 64 rows": lambda case: prod(case.outer) > 64,
    "misaligned weight": lambda case: case.layout.get("packed_weight") == "offset",
    **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
}
