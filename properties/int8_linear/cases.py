"""int8_linear: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.int8_linear as optimized
import reference.int8_linear as reference
from kernelpair.call.layout import FAR_PARAMETERS, FAR_VECTOR, READ_ROWS
from kernelpair.call.values import generator, signed, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.quantize_rows_int8.cases import HIGHEST, LOWEST, place_ends
from properties.shared import linear_layers
from properties.shared.linear_layers import LONG, drawn_outer, drawn_sizes, laid_out
from properties.shared.packed_weights import made_again
from properties.shared.strategies import any_of, around, between, common, either, together
from reference.pack_int8_weight import pack_int8_weight
from serving import PackedInt8Weight

ROWS = (*range(1, 17), 24, *around(32), 101, 0)  # M
OUTPUTS = (1, 7, *around(16), *around(32), 64, 96, 416)  # N
DEPTHS = (1, 2, 3, *around(4), *around(32), *around(64), 96, 768, 1023, 4096)  # K
DEEP = 4200  # K of two cases in 32, with few columns or few rows: more than the vectors multiply in one go
LONGEST = 65_536  # K of one case in 32, with extreme values
DTYPES = ("float32", "bfloat16", "float16")
VALUES = ("uniform", "exact", "ends")
MAGNITUDES = (1.0, 1e-3, 1e2)
TINY = 2.0**-56  # of either scale beside the longest sums of ends: their product would have few bits
BEYOND = 9  # exact x, or scales of rows, times 2 to this power have results that float16 does not hold
LAYOUT = "vnni4-n32k64"
LAYOUTS = {
    "x": READ_ROWS, "q": READ_ROWS, "scale": FAR_PARAMETERS, "azp": FAR_PARAMETERS, "data": ("offset",), "sums": FAR_VECTOR,
    "w_scale": FAR_PARAMETERS, "bias": FAR_PARAMETERS,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Int8Case(Case):
    """Rows [*outer, K] times W [N, K], plus a bias [N]: floats that are quantized on the way, or bytes with scales."""

    form: Literal["linear", "matmul"] = "linear"
    outer: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    symmetric: bool = True
    bias: str = ""
    """Its dtype; empty for none."""
    values: Literal["uniform", "exact", "ends"] = "uniform"
    """`exact`: scales are powers of 2 and sums below 2^24, so that only the last rounding is left, at times to an infinity;
    `ends`: the largest bytes of either sign, alone or mixed, whose sums and compensations are the largest. Scales are such that
    float16 holds the other results."""
    magnitude: float = 1.0
    """Of x, or of the scales of its rows."""

    @property
    def tiny(self) -> float:
        """Of the scales of rows, and of those of the weight."""
        return TINY if self.form == "matmul" and self.K == LONGEST and self.seed // 4 % 2 else 1.0


FIELDS = together({
    **common(LAYOUTS, []),
    "dtype": any_of(*DTYPES),
    "form": any_of("linear", "linear", "matmul"),
    "symmetric": either,
    "values": any_of(*VALUES),
    "bias": any_of("", *DTYPES),
    "magnitude": any_of(*MAGNITUDES),
})  # fmt: skip


@st.composite
def strategy(draw: st.DrawFn) -> Int8Case:
    """Any sizes within the budget, forms, dtypes, strides and values."""
    fields = draw(FIELDS)
    M, N, K = drawn_sizes(draw, ROWS, OUTPUTS, DEPTHS)
    rare = draw(between(0, 31), label="rare")
    if rare == 31:
        M, N, K, fields["values"] = min(M, draw(any_of(2, 8), label="most")), min(N, 7), LONGEST, "ends"
    if rare == 29:  # sums that are put away between slices of K
        M, N, K = 65, min(N, 7), DEEP
    if rare == 28:  # of several panels a thread
        M, N, K = 7, 129, DEEP
    if rare == 30:  # deep too: beyond the budget, but no fewer would do
        few = min(N, 7), min(K, 31)
        M, N, K = draw(any_of((LONG, *few), (LONG, 1, DEEP), (2 * LONG, *few)), label="M, N, K")
        return completed(fields, (M,), N, K)
    if rare == 27:
        return completed(fields, (linear_layers.MANY,), min(N, 7), min(K, 7))
    return completed(fields, drawn_outer(draw, (M, N, K), folded=fields["form"] == "linear"), N, K)


def completed(fields: dict[str, Any], outer: tuple[int, ...], N: int, K: int) -> Int8Case:
    """The case of these sizes; of magnitude 1 where its values are of a kind of their own."""
    magnitude = fields["magnitude"] if fields["values"] == "uniform" and K <= 512 else 1.0
    layout = laid_out(linear_layers.fewer_apart(fields, outer)["layout"], outer)
    return Int8Case(**fields | {"outer": outer, "N": N, "K": K, "magnitude": magnitude, "layout": layout})


def _bytes(case: Int8Case, name: str, shape: tuple[int, int], limit: int = 128) -> Tensor:
    """Bytes in [-limit, limit), or the ends alone: -128 and 127, in rows of one sign and mixed ones."""
    drawn = generator(case.seed, name)
    if case.values != "ends":
        return torch.from_numpy(drawn.integers(-limit, limit, size=shape, dtype="int8"))
    mixed = torch.from_numpy(drawn.integers(0, 2, size=shape, dtype="int8"))
    kind = torch.from_numpy(drawn.integers(0, 3, size=(shape[0], 1)))
    return torch.where(torch.where(kind == 2, mixed, kind.to(torch.int8)) > 0, 127, -128).to(torch.int8)


def _exact_rows(case: Int8Case, rows: int) -> Tensor:
    """x whose scales come out as powers of 2, and its codes as the multiples of them that it is made of."""
    drawn = generator(case.seed, "x")
    low, high = (-127, 127) if case.symmetric else (LOWEST, HIGHEST)
    codes = drawn.integers(low, high, size=(rows, case.K), endpoint=True).astype("float32")
    place_ends(codes, drawn, low, high)
    return torch.from_numpy(codes) * torch.exp2(-torch.from_numpy(drawn.integers(6, 9, size=(rows, 1))))


def _x(case: Int8Case, dtype: torch.dtype) -> Tensor:
    rows = prod(case.outer)
    if case.values == "exact" and (case.symmetric or case.K > 1):
        x = _exact_rows(case, rows) * linear_layers.beyond(case.seed, BEYOND)
    elif case.values == "ends":
        x = _bytes(case, "x", (rows, case.K)).float() / 2**14
    else:
        x = uniform(case.seed, "x", (rows, case.K), scale=case.magnitude)
    return x.to(dtype).reshape(*case.outer, case.K)


def exact(case: Int8Case) -> bool:
    """Whether nothing but the last rounding is left. A single column of asymmetric rows leaves no room for an exact scale."""
    return case.values == "exact" and (case.form == "matmul" or case.symmetric or case.K > 1)


def _quantized(case: Int8Case, rows: int) -> Inputs:
    q = _bytes(case, "q", (rows, case.K))
    drawn = generator(case.seed, "scale")
    if case.values == "uniform":
        scale = (uniform(case.seed, "scale", (rows,)).abs() + 0.25) * case.magnitude / 128
    else:
        scale = torch.exp2(-torch.from_numpy(drawn.integers(6, 9, size=rows)).float() - 9 * (case.values == "ends"))
        scale *= linear_layers.beyond(case.seed, BEYOND) if case.values == "exact" else case.tiny
    azp = torch.from_numpy(drawn.integers(-128, 127, size=rows, dtype="int32", endpoint=True))
    if case.values == "ends":
        azp = torch.where(azp < 0, -128, 127).to(torch.int32)
    return {"q": q, "scale": signed(case.seed, "scale", scale), "azp": None if case.symmetric else azp}


def _weight(case: Int8Case) -> Inputs:
    """Small bytes where sums are to stay exact in float32, some of them -128 where there is room; some scales are 0."""
    weight = _bytes(case, "weight", (case.N, case.K), 8 if case.values == "exact" else 128)
    if case.values == "exact" and case.K <= 512:
        weight[:, :: max(case.K // 3, 1)] = -128
    drawn = generator(case.seed, "w_scale")
    steps = torch.exp2(-torch.from_numpy(drawn.integers(0, 2 if case.values == "exact" else 8, size=case.N)).float())
    w_scale = steps if case.values == "exact" else steps * (1 + uniform(case.seed, "w_scale", (case.N,)).abs()) / 64
    w_scale = w_scale * case.tiny
    if case.N > 8:
        w_scale[7] = 0.0
    data, sums = pack_int8_weight(weight)
    return {"data": data, "sums": sums, "N": case.N, "K": case.K, "w_scale": signed(case.seed, "w_scale", w_scale)}


def _bias(case: Int8Case) -> Tensor | None:
    if not case.bias:
        return None
    dtype: torch.dtype = getattr(torch, case.bias)
    if case.values == "exact":
        factor = linear_layers.beyond(case.seed, BEYOND) if exact(case) else 1.0
        return small_integers(case.seed, "bias", (case.N,), dtype) * factor
    return uniform(case.seed, "bias", (case.N,), dtype, scale=min(case.magnitude, 1.0) * case.tiny**2)


def inputs(case: Int8Case) -> Inputs:
    """Rows of floats or bytes, a packed weight, scales and a bias."""
    bias = _bias(case)
    if case.form == "matmul":
        rows = _quantized(case, prod(case.outer))
        return {"form": case.form, **rows, **_weight(case), "bias": bias, "out_dtype": case.dtype}
    x = _x(case, getattr(torch, case.dtype))
    return {"form": case.form, "x": x, **_weight(case), "bias": bias, "symmetric": case.symmetric}


def arguments(layout: str | None = LAYOUT, **given: Any) -> Inputs:
    """Of a call, with a dtype for the name of one, and the packed weight that its parts make, if `kept` of its plain tensors
    again; without a layout with a plain tensor in its place."""
    data, sums, N, K = (given.pop(name) for name in ("data", "sums", "N", "K"))
    kept, dtype = given.pop("kept", False), given.get("out_dtype")
    if isinstance(dtype, str):
        given["out_dtype"] = getattr(torch, dtype)
    if layout is None:
        return given | {"packed": data}
    packed = PackedInt8Weight(data, sums, layout, N, K)
    return given | {"packed": made_again(packed) if kept else packed}


def call_reference(form: str, layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The reference with the packed weight's parts as arguments, so that each can be placed and made wrong. Where the scales
    are float64, as for the truth, so is the result."""
    said = arguments(layout, **given)
    if form == "linear":
        return reference.int8_linear(**said)
    wide = isinstance(given["scale"], Tensor) and given["scale"].dtype == torch.float64
    return reference.int8_matmul(**said | ({"out_dtype": torch.float64} if wide else {}))


def call_optimized(form: str, layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The kernel, likewise."""
    function, said = optimized_call(form, layout, **given)
    return function(**said)


def optimized_call(form: str, layout: str | None = LAYOUT, **given: Any) -> tuple[Callable[..., Tensor], Inputs]:
    """The kernel's function of a form, and its arguments with their packed weight."""
    return optimized.int8_linear if form == "linear" else optimized.int8_matmul, arguments(layout, **given)


EDGES: dict[str, Callable[[Any], bool]] = {
    "no rows": lambda case: 0 in case.outer,
    "x of one dimension": lambda case: case.outer == (),
    "x of four dimensions": lambda case: len(case.outer) == 3,
    "rows of bytes": lambda case: case.form == "matmul" and case.outer > (1,),
    "zero points": lambda case: not case.symmetric and prod(case.outer) > 1,
    "x expanded": lambda case: case.layout.get("x") == "expanded" and case.form == "linear" and case.outer[:1] > (1,),
    "partial panel": lambda case: case.N % 32 > 0,
    "K that cuts a quad": lambda case: case.K % 4 > 0,
    "K that cuts a block": lambda case: case.K % 64 > 0,
    "the longest K": lambda case: case.K == LONGEST,
    "more than 1024 rows": lambda case: prod(case.outer) > 1024,
    "misaligned weight": lambda case: case.layout.get("data") == "offset",
    **{f"values {kind}": lambda case, kind=kind: case.values == kind for kind in VALUES},  # type: ignore[misc]
    **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
}


def small(case: Int8Case) -> bool:
    """Whether tiles in software multiply it in time."""
    longest = case.K == LONGEST and case.N <= 7 and prod(case.outer) <= 2
    return longest or linear_layers.small(case, block=64, deep=DEEP)
