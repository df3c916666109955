"""int4_linear: what is drawn, and the arguments of a case."""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.int4_linear as optimized
import reference.int4_linear as reference
from kernelpair.call.layout import FAR_PARAMETERS, READ_ROWS
from kernelpair.call.values import generator, signed, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared import linear_layers
from properties.shared.linear_layers import laid_out
from properties.shared.packed_weights import WIDE, made_again
from properties.shared.strategies import any_of, around, common, together
from reference.pack_int4_weight import groups_of, pack_int4_weight, unpack_int4_weight
from serving import PackedInt4Weight

ROWS = (*range(1, 18), *around(32), 65, 97, 0)  # M
OUTPUTS = (1, 8, *around(16), *around(32), 64, 96, 416)  # N
DEPTHS = (1, 31, *around(32), *around(64), *around(128), 256, 512, 520, 4096)  # K
GROUPS = (128, 32, 64, 96, 2, 48, 1, 5, 35, 36, -1, WIDE + 48)
DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS: tuple[Literal["x", "int8"], ...] = ("x", "int8")
LONG_GROUP = 520  # columns: the bytes of a row of one sign sum up to more than 16 bits hold, in calls of one to three rows too
VALUES = ("uniform", "integers", "one_sign")
LARGEST = 127  # of |x| where rows in int8 are exact
BEYOND = 8  # such x times 2 to this power have sums that float16 does not hold
FAINT, NEAR_LEAST = 2.0**-40, 2.0**-20  # of x
SMALL = 2.0**-14  # of the scales in one of four cases: none is a normal number of float16
LAYOUT = "nib2-n32k32"
LAYOUTS = {
    "x": (*READ_ROWS, "strided", "transposed"), "data": ("offset",), "scales": ("offset",), "zeros": ("offset",),
    "bias": FAR_PARAMETERS,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Int4Case(Case):
    """x [*outer, K] times a weight [N, K] of codes with a scale and a zero point for each group, plus a bias [N]."""

    outer: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    group: int = 128
    """Columns that share a scale; -1: all."""
    activation: Literal["x", "int8"] = "x"
    points: Literal["any", "nibble", ""] = "any"
    """Zero points: up to 16; up to 15, which four bits hold; or 8 for all."""
    scale: str = "float32"
    """The dtype that holds the scales exactly."""
    bias: str = ""
    """Its dtype; empty for none."""
    values: Literal["uniform", "integers", "one_sign"] = "uniform"
    """`uniform`: x and scales of any fraction, one scale 0. `integers`: whole x, at times times a power of 2, 127 of it or -127
    once in a row, so that its int8 are itself, and scales that are powers of 2: all sums are exact. `one_sign`: rows of one sign,
    with the largest sums of int8. Scales that are no powers of 2 may be tiny, beside biases that do not hide what they give."""

    @property
    def groups(self) -> int:
        return 1 if self.group == -1 else -(-self.K // self.group)

    @property
    def size(self) -> float:
        """Of all scales, beside those that are usual."""
        return SMALL if self.seed // 4 % 4 == 3 else 1.0

    @property
    def reach(self) -> float:
        """Of uniform x and the bias beside it, of one case in four: float16 holds no such small numbers, bfloat16 and float32 do.
        Some lie above the least range of a row of bytes, and some below."""
        if "float16" in (self.dtype, self.bias) or self.seed // 16 % 4 < 3:
            return 1.0
        return FAINT if self.seed // 64 % 2 else NEAR_LEAST


FIELDS = together({
    **common(LAYOUTS, []),
    "dtype": any_of(*DTYPES),
    "group": any_of(*GROUPS),
    "activation": any_of(*ACTIVATIONS),
    "points": any_of("any", "nibble", ""),
    "scale": any_of(*DTYPES),
    "bias": any_of("", *DTYPES),
    "values": any_of(*VALUES),
})  # fmt: skip


@st.composite
def strategy(draw: st.DrawFn) -> Int4Case:
    """Any sizes within the budget, groups, dtypes, strides and values."""
    fields = draw(FIELDS)
    outer, N, K = linear_layers.drawn_layer(draw, ROWS, OUTPUTS, DEPTHS)
    if fields["activation"] == "int8" and fields["seed"] % 16 == 9:
        outer, K, fields = (1 + fields["seed"] // 16 % 3,), LONG_GROUP, fields | {"group": -1, "values": "one_sign"}
    return completed(fields, outer, N, K)


def completed(fields: dict[str, Any], outer: tuple[int, ...], N: int, K: int) -> Int4Case:
    """The case of these sizes."""
    layout = laid_out(linear_layers.fewer_apart(fields, outer)["layout"], outer)
    return Int4Case(**fields | {"outer": outer, "N": N, "K": K, "layout": layout})


def _x(case: Int4Case, dtype: torch.dtype) -> Tensor:
    rows, K = prod(case.outer), case.K
    if case.values == "uniform":
        return uniform(case.seed, "x", (rows, K), dtype, case.reach).reshape(*case.outer, K)
    if case.values == "one_sign":  # so small that float16 holds the results
        sizes = (1 + uniform(case.seed, "x", (rows, K)).abs()) / 16
        return signed(case.seed // 2, "x", sizes[:, :1].sign()).mul(sizes).to(dtype).reshape(*case.outer, K)
    x = small_integers(case.seed, "x", (rows, K), dtype, limit=8)
    drawn = generator(case.seed, "largest")
    column = torch.from_numpy(drawn.integers(0, K, size=rows))
    sign = torch.from_numpy(drawn.integers(0, 2, size=rows)) * 2 - 1
    x[torch.arange(rows), column] = (sign * LARGEST).to(dtype)
    return (x * linear_layers.beyond(case.seed, BEYOND)).reshape(*case.outer, K)


def _weight(case: Int4Case) -> Inputs:
    """All codes at both places of a byte; scales and zero points that differ from group to group."""
    drawn, shape = generator(case.seed, "weight"), (case.N, case.groups)
    codes = torch.from_numpy(drawn.integers(0, 15, size=(case.N, case.K), dtype="uint8", endpoint=True))
    highest_zero = 16 if case.points == "any" else 15
    points = torch.from_numpy(drawn.integers(0, highest_zero, size=shape, dtype="uint8", endpoint=True))
    lowest, highest = (-3, 0) if case.values == "integers" else (-8, -3)
    scales = torch.exp2(torch.from_numpy(drawn.integers(lowest, highest, size=shape, endpoint=True)).float())
    if case.values != "integers":
        scales = (scales * case.size * (1 + uniform(case.seed, "scales", shape).abs())).to(getattr(torch, case.scale)).float()
        if scales.numel() > 3:
            scales[int(drawn.integers(0, shape[0])), int(drawn.integers(0, shape[1]))] = 0.0
    return packed_parts(codes, signed(case.seed, "scales", scales), points if case.points else None, case.group)


def _bias(case: Int4Case) -> Tensor | None:
    if not case.bias:
        return None
    dtype: torch.dtype = getattr(torch, case.bias)
    if case.values == "integers":
        return small_integers(case.seed, "bias", (case.N,), dtype) * linear_layers.beyond(case.seed, BEYOND)
    return uniform(case.seed, "bias", (case.N,), dtype, scale=case.size * (case.reach if case.values == "uniform" else 1.0))


def inputs(case: Int4Case) -> Inputs:
    """Rows, a packed weight with its scales and zero points, and a bias."""
    x = _x(case, getattr(torch, case.dtype))
    return {"x": x, **_weight(case), "bias": _bias(case), "activation": case.activation}


def packed_parts(codes: Tensor, scales: Tensor, zeros: Tensor | None, group_size: int) -> Inputs:
    """The parts of a packed weight, as arguments."""
    data, kept_scales, kept_zeros = pack_int4_weight(codes, scales, zeros, group_size)
    N, K = codes.shape
    return {"data": data, "scales": kept_scales, "zeros": kept_zeros, "N": N, "K": K, "group_size": group_size}


def plain_parts(given: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [N, K], scales and zero points [N, G] of the packed weight."""
    return unpack_int4_weight(*(given[name] for name in ("data", "scales", "zeros", "N", "K", "group_size")))


def steps_and_scales(given: Inputs) -> tuple[Tensor, Tensor]:
    """c - z of each weight and the scales [N, G], in float64."""
    codes, scales, zeros = plain_parts(given)
    return codes.double() - zeros.double()[:, group_of_columns(given)], scales.double()


def group_of_columns(given: Inputs) -> Tensor:
    """The group of each column."""
    groups = groups_of(given["N"], given["K"], given["group_size"])
    return torch.arange(given["K"]) // (given["group_size"] if groups > 1 else given["K"])


def dense_weight(given: Inputs) -> Tensor:
    """The dequantized weight [N, K] in float64."""
    steps, scales = steps_and_scales(given)
    return steps * scales[:, group_of_columns(given)]


def arguments(layout: str | None = LAYOUT, **given: Any) -> Inputs:
    """Of a call, with the packed weight that its parts make, if `kept` of its plain tensors again; without a layout with a plain
    tensor in its place."""
    data, scales, zeros, N, K, size = (given.pop(name) for name in ("data", "scales", "zeros", "N", "K", "group_size"))
    kept = given.pop("kept", False)
    if layout is None:
        return given | {"packed": data}
    if kept:  # packing has put K for -1
        return given | {"packed": made_again(PackedInt4Weight(data, scales, zeros, layout, N, K, K if size == -1 else size))}
    return given | {"packed": PackedInt4Weight(data, scales, zeros, layout, N, K, size)}


def call_reference(layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The reference with the packed weight's parts as arguments, so that each can be placed and made wrong."""
    return reference.int4_linear(**arguments(layout, **given))


def call_optimized(layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The kernel, likewise."""
    return optimized.int4_linear(**arguments(layout, **given))
