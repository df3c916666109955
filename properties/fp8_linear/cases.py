"""fp8_linear: what is drawn, and the arguments of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.fp8_linear as optimized
import reference.fp8_linear as reference
from kernelpair.call.layout import FAR, FAR_PARAMETERS, READ_ROWS
from kernelpair.call.values import generator, signed, small_integers, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Inputs
from properties.shared import linear_layers
from properties.shared.packed_weights import WIDE, made_again
from properties.shared.strategies import any_of, around, common, together
from reference.fp8_to_float import fp8_to_float
from reference.pack_fp8_weight import pack_fp8_weight, unpack_fp8_weight
from serving import PackedFp8Weight

ROWS = (*range(1, 18), *around(32), 65, 0)  # M
OUTPUTS = (1, 7, *around(16), *around(32), 64, 96, 416)  # N
DEPTHS = (1, 31, *around(32), *around(64), *around(128), 255, 384, 520)  # K
DTYPES = ("float32", "bfloat16", "float16")
VALUES = ("uniform", "integers", "one_hot")
LONG_BLOCK, TWO_LONG_BLOCKS = "64x768", 800  # more columns than are decoded at a time for few rows
SMALL_BLOCKS = ("32x64", "96x96", "5x48", "3x5", "40x35")
BLOCKS = ("tensor", "channel", "128x128", "64x128", *SMALL_BLOCKS, LONG_BLOCK, f"{WIDE + 3}x{WIDE + 5}")
MAGNITUDES = (1.0, 1.0, 1e-6)  # the last one of weights that are all but 0
FAINT = 2.0**-40  # of x, whose dtype holds it
HUGE = 2.0**100  # the scale of a block of zeros
BEYOND = 13  # small whole x times 2 to this power have sums that float16 does not hold
LAYOUT = "e4m3-vnni2-n32k32"
LAYOUTS = {
    "x": (*READ_ROWS, "strided", "transposed"), "data": ("offset",), "scales": (*FAR_PARAMETERS, FAR), "bias": FAR_PARAMETERS,
}  # fmt: skip
INTEGERS = (0x00, 0x80, 0x38, 0xB8, 0x40, 0xC0, 0x30, 0x01)  # 0, -0, 1, -1, 2, -2, 1/2, and the smallest subnormal


@dataclass(frozen=True, kw_only=True)
class Fp8LinearCase(Case):
    """x [*outer, K] times a weight [N, K] of codes with scales for blocks, plus a bias [N]."""

    outer: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    block: str = "tensor"
    """Outputs x columns that share a scale; `channel`: a row of the weight does, `tensor`: all of it."""
    bias: str = ""
    """Its dtype; empty for none."""
    values: Literal["uniform", "integers", "one_hot"] = "uniform"
    """`uniform`: all finite codes alike, and scales from 2^-8 to 2^3 times the magnitude, one of them 0. `integers`: a few codes,
    scales that are powers of 2, small x, at times times another one: all sums are exact. `one_hot`: rows of x that read a column
    of all codes, scales of 1; where there are several blocks the first one is of zeros, with a scale out of all proportion."""
    magnitude: float = 1.0
    """Of uniform scales, and of the bias beside them."""
    reach: float = 1.0
    """Of uniform x without a bias, times its usual size: float16 holds no such small numbers, bfloat16 and float32 do."""

    @property
    def block_size(self) -> tuple[int, int]:
        if self.block == "tensor":
            return self.N, self.K
        if self.block == "channel":
            return 1, self.K
        block_n, block_k = map(int, self.block.split("x"))
        return block_n, block_k


FIELDS = together({
    **common(LAYOUTS, []),
    "dtype": any_of(*DTYPES),
    "block": any_of(*BLOCKS),
    "bias": any_of("", *DTYPES),
    "values": any_of(*VALUES),
    "magnitude": any_of(*MAGNITUDES),
    "reach": any_of(1.0, 1.0, FAINT),
})  # fmt: skip


@st.composite
def strategy(draw: st.DrawFn) -> Fp8LinearCase:
    """Any sizes within the budget, blocks, dtypes, strides and values; where blocks are long, of a few rows two of them."""
    fields = draw(FIELDS)
    outer, N, K = linear_layers.drawn_layer(draw, ROWS, OUTPUTS, DEPTHS)
    if fields["block"] == LONG_BLOCK and prod(outer) <= 32:
        N, K = min(N, 33), max(K, TWO_LONG_BLOCKS)
    if fields["seed"] % 64 == 33:
        outer, N, K = (1 + fields["seed"] // 64 % 3,), min(N, 7), linear_layers.MANY
    return completed(fields, outer, N, K)


def completed(fields: dict[str, Any], outer: tuple[int, ...], N: int, K: int) -> Fp8LinearCase:
    """The case of these sizes; of magnitude 1 where its scales are of a kind of their own, and of faint x where they show."""
    magnitude = fields["magnitude"] if fields["values"] == "uniform" else 1.0
    plain = fields["values"] != "uniform" or fields["bias"] or fields["dtype"] == "float16"
    fields = linear_layers.fewer_apart(fields, outer) | {"magnitude": magnitude, "reach": 1.0 if plain else fields["reach"]}
    return Fp8LinearCase(**fields | {"outer": outer, "N": N, "K": K})


def _codes(case: Fp8LinearCase) -> Tensor:
    """All finite codes with signs of their own; or those of INTEGERS, of which the subnormal one stands once in a row."""
    drawn, shape = generator(case.seed, "weight"), (case.N, case.K)
    if case.values != "integers":
        magnitude = drawn.integers(0, 0x7E, size=shape, dtype="uint8", endpoint=True)
        sign = drawn.integers(0, 1, size=shape, dtype="uint8", endpoint=True)
        return torch.from_numpy(magnitude | sign << 7)
    table = torch.tensor(INTEGERS, dtype=torch.uint8)
    codes = table[torch.from_numpy(drawn.integers(0, len(INTEGERS) - 2, size=shape, endpoint=True))]
    codes[:, int(drawn.integers(0, case.K))] = INTEGERS[-1]
    return codes


def _scales(case: Fp8LinearCase) -> Tensor:
    block_n, block_k = case.block_size
    shape = (-(-case.N // block_n), -(-case.K // block_k))
    if case.values == "one_hot":
        return torch.ones(shape)
    drawn = generator(case.seed, "scales")
    powers = torch.exp2(torch.from_numpy(drawn.integers(-8, 2, size=shape)).float())
    if case.values == "integers":
        return torch.exp2(torch.from_numpy(drawn.integers(-2, 2, size=shape)).float())
    scales = powers * (1 + uniform(case.seed, "scales", shape).abs()) * case.magnitude
    if scales.numel() > 3:
        scales[int(drawn.integers(0, shape[0])), int(drawn.integers(0, shape[1]))] = 0.0
    return scales


def _x(case: Fp8LinearCase, dtype: torch.dtype) -> Tensor:
    """So small that float16 holds the results: 4,096 products of 448 and a scale of 8."""
    rows, K = prod(case.outer), case.K
    if case.values == "integers":
        x = small_integers(case.seed, "x", (rows, K), dtype) * linear_layers.beyond(case.seed, BEYOND)
    elif case.values == "one_hot":
        chosen = torch.from_numpy(generator(case.seed, "x").integers(0, K, size=rows))
        x = torch.nn.functional.one_hot(chosen, K).to(dtype)
    else:
        x = uniform(case.seed, "x", (rows, K), dtype, scale=2.0**-6 * case.reach)
    return x.reshape(*case.outer, K)


def _bias(case: Fp8LinearCase) -> Tensor | None:
    if not case.bias:
        return None
    dtype: torch.dtype = getattr(torch, case.bias)
    if case.values == "uniform":
        return uniform(case.seed, "bias", (case.N,), dtype, scale=case.magnitude)
    factor = linear_layers.beyond(case.seed, BEYOND) if case.values == "integers" else 1.0
    return small_integers(case.seed, "bias", (case.N,), dtype) * factor


def inputs(case: Fp8LinearCase) -> Inputs:
    """Rows, a packed weight with its scales, and a bias."""
    codes, scales, (block_n, block_k) = _codes(case), signed(case.seed, "scales", _scales(case)), case.block_size
    if case.values == "one_hot" and scales.numel() > 1:
        codes[:block_n, :block_k] &= 0x80
        scales[0, 0] = HUGE
    weight = packed_parts(codes.view(torch.float8_e4m3fn), scales, (block_n, block_k))
    return {"x": _x(case, getattr(torch, case.dtype)), **weight, "bias": _bias(case)}


def packed_parts(codes: Tensor, scales: Tensor, block_size: tuple[int, int]) -> Inputs:
    """The parts of a packed weight, as arguments."""
    data, kept = pack_fp8_weight(codes, scales, *block_size)
    N, K = codes.shape
    return {"data": data, "scales": kept, "N": N, "K": K, "block_n": block_size[0], "block_k": block_size[1]}


def dense_weight(given: Inputs, scaled: bool = True) -> Tensor:
    """The numbers of the weight [N, K] times their scales, in float64."""
    N, K = given["N"], given["K"]
    weight = fp8_to_float(unpack_fp8_weight(given["data"], N, K), torch.float64)
    if not scaled:
        return weight
    outputs, columns = torch.arange(N) // given["block_n"], torch.arange(K) // given["block_k"]
    return weight * given["scales"].double()[outputs][:, columns]


def arguments(layout: str | None = LAYOUT, **given: Any) -> Inputs:
    """Of a call, with the packed weight that its parts make, if `kept` of its plain tensors again; without a layout with a plain
    tensor in its place."""
    data, scales, N, K, block_n, block_k = (given.pop(name) for name in ("data", "scales", "N", "K", "block_n", "block_k"))
    kept = given.pop("kept", False)
    if layout is None:
        return given | {"packed": data}
    packed = PackedFp8Weight(data, scales, layout, N, K, (block_n, block_k))
    return given | {"packed": made_again(packed) if kept else packed}


def call_reference(layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The reference with the packed weight's parts as arguments, so that each can be placed and made wrong."""
    return reference.fp8_linear(**arguments(layout, **given))


def call_optimized(layout: str | None = LAYOUT, **given: Any) -> Tensor:
    """The kernel, likewise."""
    return optimized.fp8_linear(**arguments(layout, **given))


EDGES: dict[str, Callable[[Any], bool]] = {
    **linear_layers.EDGES,
    "9 to 16 rows, several long blocks": lambda case: (
        case.block == LONG_BLOCK and case.K >= TWO_LONG_BLOCKS and 8 < prod(case.outer) <= 16
    ),
    "blocks that end within tiles": lambda case: case.block == "3x5" and case.N > 3 and case.K > 5,
    "partial scale blocks": lambda case: all(size % block for size, block in zip((case.N, case.K), case.block_size)),
    "several blocks of 128 x 128": lambda case: case.block == "128x128" and case.N > 128 and case.K > 128,
    "misaligned weight": lambda case: case.layout.get("data") == "offset",
    "scales strided": lambda case: case.layout.get("scales") == "strided" and case.block_size[1] < case.K,
    **{f"block {kind}": lambda case, kind=kind: case.block == kind for kind in BLOCKS},  # type: ignore[misc]
    **{f"values {kind}": lambda case, kind=kind: case.values == kind for kind in VALUES},  # type: ignore[misc]
    **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
}  # fmt: skip
