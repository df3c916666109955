"""packed_linear on trial: any rows against a packed weight, summed in float32 and rounded once."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import optimized.packed_linear as optimized
import reference.packed_linear as reference
from kernelpair.case import Case
from kernelpair.layout import ANY_STRIDES, READ_ONLY
from kernelpair.pair import EXACT, Bad, BenchRow, Bound, Floor, Inputs, Outputs, Pair, Relation, every_argument
from kernelpair.session import Session
from kernelpair.values import generator, small_integers, uniform
from properties.attention_bound import UNIT_ROUNDOFF, accumulation_error, flush_error
from properties.strategies import any_of, around, between, common, kernel_paths, together
from reference.pack_linear_weight import pack_linear_weight, unpack_linear_weight

ROWS = (1, 2, 3, 4, 5, 16, *around(32), 64, 101, 0)  # M
OUTPUTS = (1, 7, 12, *around(16), 24, *around(32, 48, 64), 416)  # N
DEPTHS = (1, 2, 3, *around(32, 64), 96, 512, 4099)  # K
DEEP = 2080  # K of one case in 32, with few columns
LONG = 1031  # rows of one case in 32: more than a kernel copies at a time
MOST_PRODUCTS = 4_000_000  # M * N * K of a case: 10 ms for the float64 truth
MOST_EMULATED = 1_000_000  # 20 ms of software tiles
DTYPES = ("float32", "bfloat16", "float16")
VALUES = ("uniform", "integers", "one_hot")
SCALES = (1.0, 1e-3, 1e2)
ANY_LAYOUT = "vnni2-n32k32"  # a known tag; the shape decides
LAYOUTS = {"x": (*READ_ONLY, "strided", "transposed"), "packed_weight": ("offset",), "bias": ANY_STRIDES}


@dataclass(frozen=True, kw_only=True)
class LinearCase(Case):
    """x [*outer, K] times W [N, K], plus a bias [N]."""

    outer: tuple[int, ...] = (1,)
    N: int = 1
    K: int = 1
    bias: str = ""
    """Its dtype; empty for none."""
    values: str = "uniform"
    """`integers`: small ones, whose sums are exact; `one_hot`: rows of W that copy one column of x."""
    scale: float = 1.0
    """Of x; W stays below 1, so that nothing overflows in float16."""


FIELDS = together({**common(LAYOUTS, []), "dtype": st.sampled_from(DTYPES)})


@st.composite
def cases(draw: st.DrawFn) -> LinearCase:
    """Any sizes within the budget, dtypes, strides and values."""
    fields = draw(FIELDS)
    N, K = draw(any_of(*OUTPUTS), label="N"), draw(any_of(*DEPTHS), label="K")
    M = draw(any_of(*(rows for rows in ROWS if rows * N * K <= MOST_PRODUCTS)), label="M")
    rare = draw(between(0, 31), label="rare")
    if rare == 31:  # sums that are put away between slices of K
        M, N, K = 65, min(N, 7), DEEP
    if rare == 30:
        M, N, K = LONG, min(N, 7), min(K, 31)
    shapes = [(M,), (2, M), (M, 3), (2, 1, M)] + ([()] if M == 1 else [])
    outer = draw(any_of(*(shape for shape in shapes if prod(shape) * N * K <= MOST_PRODUCTS)), label="outer")
    values = draw(any_of(*VALUES), label="values")
    scale = draw(any_of(*SCALES), label="scale") if values == "uniform" and K <= 512 else 1.0
    bias = draw(any_of("", *DTYPES), label="bias")
    return LinearCase(**fields, outer=outer, N=N, K=K, bias=bias, values=values, scale=scale)


def _weight(case: LinearCase, dtype: torch.dtype) -> Tensor:
    if case.values == "integers":
        return small_integers(case.seed, "weight", (case.N, case.K), dtype)
    if case.values == "uniform":
        return uniform(case.seed, "weight", (case.N, case.K), dtype)
    chosen = torch.from_numpy(generator(case.seed, "weight").integers(0, case.K, size=case.N))
    return torch.nn.functional.one_hot(chosen, case.K).to(dtype)


def _bias(case: LinearCase) -> Tensor | None:
    if not case.bias:
        return None
    dtype = getattr(torch, case.bias)
    if case.values == "uniform":
        return uniform(case.seed, "bias", (case.N,), dtype)
    return small_integers(case.seed, "bias", (case.N,), dtype, limit=0 if case.values == "one_hot" else 2)


def inputs(case: LinearCase) -> Inputs:
    """Zero-mean data, so that single terms count against a small sum; or values whose sums are exact."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    shape = (*case.outer, case.K)
    x = (
        small_integers(case.seed, "x", shape, dtype)
        if case.values == "integers"
        else uniform(case.seed, "x", shape, dtype, scale=case.scale)
    )
    packed = pack_linear_weight(_weight(case, dtype))
    return {"x": x, "packed_weight": packed, "N": case.N, "K": case.K, "bias": _bias(case)}


def call_reference(
    x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None, layout: str | None = ANY_LAYOUT
) -> Tensor:
    """The reference with the packed weight's parts as arguments, so that each can be placed and spoiled; without a layout the
    plain tensor takes the packed weight's place."""
    packed: Any = packed_weight if layout is None else reference.PackedWeight(packed_weight, layout, N, K)
    return reference.packed_linear(x, packed, bias)


def call_optimized(
    x: Tensor, packed_weight: Tensor, N: int, K: int, bias: Tensor | None = None, layout: str | None = ANY_LAYOUT
) -> Tensor:
    """The kernel, likewise."""
    packed: Any = packed_weight if layout is None else optimized.PackedWeight(packed_weight, layout, N, K)
    return optimized.packed_linear(x, packed, bias)


def bound(case: LinearCase, given: Inputs, truth: Outputs) -> Bound:
    """K products and a bias summed in float32 in any order, one rounding; flushed operands, products and results.

    With exact sums (small integers, one term) only the rounding is left: equality.
    """
    if case.values != "uniform":
        return {"out": EXACT}
    dtype: torch.dtype = getattr(torch, case.dtype)
    x, weight = given["x"].abs(), unpack_linear_weight(given["packed_weight"], case.N, case.K).abs()
    bias = given["bias"].abs() if given["bias"] is not None else 0.0
    size = x @ weight.T + bias
    terms = case.K + x.sum(-1, keepdim=True) + weight.sum(-1)
    rounding = UNIT_ROUNDOFF[dtype] * truth["out"].abs()
    return {"out": rounding + accumulation_error(case.K + 2) * size + flush_error(terms, dtype)}


# --- relations ---


def _tolerance(session: Session) -> Tensor | None:
    """Twice the bound: each side within one of the truth. None where the values are exact."""
    limit = session.first.bound["out"]
    return 2 * limit if isinstance(limit, Tensor) else None


def _expect(session: Session, got: Tensor, expected: Tensor, tolerance: Tensor | None, says: str) -> None:
    if tolerance is None:
        session.expect_same("out", got + 0.0, expected + 0.0, says)  # -0 and 0 are one result
    else:
        session.expect_close("out", got, expected, tolerance, says)


def _alone(case: LinearCase, session: Session) -> None:
    """The last row by itself."""
    given = session.inputs()
    last = tuple(size - 1 for size in case.outer)
    result = session.run(replace(case, layout={}), given | {"x": given["x"][last].clone()}, judged=False)
    tolerance = _tolerance(session)
    says = "a row by itself equals the row in company"
    _expect(
        session,
        result.outputs["out"],
        session.first.outputs["out"][last],
        tolerance[last] if tolerance is not None else None,
        says,
    )


def _parts(case: LinearCase, session: Session) -> None:
    """The weight in two parts along N."""
    given = session.inputs()
    half = case.N // 2
    weight = unpack_linear_weight(given["packed_weight"], case.N, case.K)
    tolerance = _tolerance(session)
    for columns in (slice(0, half), slice(half, None)):
        bias = given["bias"][columns].clone() if given["bias"] is not None else None
        part = weight[columns]
        other = {"packed_weight": pack_linear_weight(part), "N": len(part), "bias": bias}
        result = session.run(replace(case, layout={}), given | other, judged=False)
        limit = tolerance[..., columns] if tolerance is not None else None
        says = "concatenated weights concatenate outputs"
        _expect(session, result.outputs["out"], session.first.outputs["out"][..., columns], limit, says)


def _zero_bias(case: LinearCase, session: Session) -> None:
    given = session.inputs()
    result = session.run(inputs=given | {"bias": torch.zeros(case.N)}, judged=False)
    says = "a bias of zeros equals none"
    _expect(session, result.outputs["out"], session.first.outputs["out"], _tolerance(session), says)


def _dense(case: LinearCase, session: Session) -> None:
    result = session.run(replace(case, layout={}), session.inputs(), judged=False)
    says = "dense tensors"
    _expect(session, result.outputs["out"], session.first.outputs["out"], _tolerance(session), says)


def _nan_stays(case: LinearCase, session: Session) -> None:
    """NaN in one row of x and one row of W reaches its row and its column, and nothing else."""
    given = session.inputs()
    weight = unpack_linear_weight(given["packed_weight"], case.N, case.K)
    row = tuple(size // 2 for size in case.outer)
    column = case.N // 2
    x = given["x"].clone()
    x[row][case.K // 2] = float("nan")
    weight[column, case.K - 1] = float("nan")
    got = session.run(inputs=given | {"x": x, "packed_weight": pack_linear_weight(weight)}, judged=False).outputs["out"]
    clean = torch.ones(got.shape, dtype=torch.bool)
    clean[row] = False
    clean[..., column] = False
    session.expect(bool(got[~clean].isnan().all()), "out", "NaN reaches its row and its column")
    tolerance = _tolerance(session)
    limit = tolerance[clean] if tolerance is not None else None
    _expect(session, got[clean], session.first.outputs["out"][clean], limit, "NaN stays in its row and its column")


def _has_rows(case: LinearCase) -> bool:
    return 0 not in case.outer and case.layout.get("x") != "expanded"


RELATIONS = {
    "alone": Relation(_alone, "a row does not depend on the other rows", _has_rows),
    "parts": Relation(_parts, "concatenating weights along N concatenates the outputs", lambda case: case.N > 1),
    "zero_bias": Relation(_zero_bias, "no bias equals a bias of zeros", lambda case: not case.bias),
    "nan": Relation(_nan_stays, "NaN in a row of x or of the weight stays in its row or column", _has_rows),
    "layout": Relation(_dense, "strides and offsets do not matter"),
}


# --- wrong calls ---


def _other_dtype(case: LinearCase) -> torch.dtype:
    return torch.float16 if case.dtype == "bfloat16" else torch.bfloat16


def _wider(case: LinearCase, given: Inputs) -> Inputs:
    return given | {"x": given["x"].new_zeros(*case.outer, case.K + 1)}


BAD = {
    "x_columns": Bad(_wider, ValueError, ("x", "K")),
    "x_dtype": Bad(lambda case, given: given | {"x": given["x"].to(_other_dtype(case))}, TypeError, "x"),
    "x_integers": Bad(lambda case, given: given | {"x": given["x"].to(torch.int32)}, TypeError, "x"),
    "x_none": Bad(lambda case, given: given | {"x": None}, TypeError, "x"),
    "x_scalar": Bad(lambda case, given: given | {"x": torch.zeros((), dtype=given["x"].dtype)}, ValueError, "x"),
    "weight_rank": Bad(
        lambda case, given: given | {"packed_weight": given["packed_weight"].flatten(4)}, ValueError, "packed_weight"
    ),
    "weight_N": Bad(lambda case, given: given | {"N": case.N + 32}, ValueError, ("packed_weight", "N")),
    "weight_K": Bad(lambda case, given: given | {"K": case.K + 32}, ValueError, ("packed_weight", "K")),
    "weight_size_zero": Bad(lambda case, given: given | {"N": 0}, ValueError, "N"),
    "weight_raw": Bad(
        lambda case, given: given | {"packed_weight": _weight(case, given["x"].dtype), "layout": None}, TypeError, "packed"
    ),
    "weight_packed_but_plain": Bad(lambda case, given: given | {"layout": None}, TypeError, "packed"),
    "layout_unknown": Bad(lambda case, given: given | {"layout": "vnni4-n16k64"}, ValueError, "layout"),
    "weight_none": Bad(lambda case, given: given | {"packed_weight": None}, TypeError, ("packed_weight", "packed")),
    "bias_length": Bad(lambda case, given: given | {"bias": torch.zeros(case.N + 1)}, ValueError, "bias"),
    "bias_rank": Bad(lambda case, given: given | {"bias": torch.zeros(1, case.N)}, ValueError, "bias"),
    "bias_integers": Bad(
        lambda case, given: given | {"bias": torch.zeros(case.N, dtype=torch.int64)}, TypeError, "bias"
    ),
}


# --- bench ---


def _bench_inputs(rows: int, dtype: torch.dtype) -> Inputs:
    x = torch.randn(rows, 4096).to(dtype)
    packed = pack_linear_weight((torch.randn(4096, 4096) / 64).to(dtype))
    return {"x": x, "packed_weight": packed, "N": 4096, "K": 4096, "bias": None}


def _torch_linear(given: Inputs):  # type: ignore[no-untyped-def]
    weight = unpack_linear_weight(given["packed_weight"], given["N"], given["K"])
    return lambda: torch.nn.functional.linear(given["x"], weight)


def _row(rows: int, floor: Floor, dtype: torch.dtype = torch.bfloat16) -> BenchRow:
    bf16 = dtype == torch.bfloat16
    return BenchRow(
        f"{rows} x 4096 x 4096" + ("" if bf16 else f", {str(dtype).removeprefix('torch.')}"),
        lambda: _bench_inputs(rows, dtype),
        flops=2.0 * rows * 4096 * 4096,
        bytes=dtype.itemsize * 4096.0 * (4096 + 2 * rows),
        peers={"torch": _torch_linear},
        floor=floor,
        counts=bf16,
        alone=True,
    )


BENCH = [
    *(_row(rows, Floor(ratio)) for rows, ratio in ((1, 1.0), (16, 1.0), (64, 1.15), (256, 1.35), (1024, 1.15))),
    *(_row(256, Floor(0.5, over="torch"), dtype) for dtype in (torch.float16, torch.float32)),
]


PAIR = Pair(
    name="packed_linear",
    version=1,
    case=LinearCase,
    cases=cases(),
    inputs=inputs,
    reference=call_reference,
    optimized=call_optimized,
    bound=bound,
    layouts=LAYOUTS,
    relations=RELATIONS,
    paths=kernel_paths("linear_"),
    bad=BAD,
    fuzz=every_argument,
    sharp=lambda case: case.values != "uniform" or case.dtype == "float32",
    emulated=lambda case: max(prod(case.outer), 16) * max(case.N, 32) * max(case.K, 32) <= MOST_EMULATED
    or (case.K == DEEP and case.N <= 7 and prod(case.outer) <= 130)
    or (case.K < 32 and case.N <= 7 and prod(case.outer) == LONG),
    edges={
        "no rows": lambda case: 0 in case.outer,
        "x of one dimension": lambda case: case.outer == (),
        "x of four dimensions": lambda case: len(case.outer) == 3,
        "x expanded": lambda case: case.layout.get("x") == "expanded" and case.outer[:1] > (1,),
        "x transposed": lambda case: case.layout.get("x") == "transposed" and case.K > 1 and prod(case.outer) > 1,
        "N = 1": lambda case: case.N == 1,
        "K = 1": lambda case: case.K == 1,
        "partial panel": lambda case: case.N % 32 > 0,
        "tail of K": lambda case: case.K % 32 > 0,
        "odd K": lambda case: case.K % 2 == 1,
        "long K": lambda case: case.K > 2048,
        "more than 64 rows": lambda case: prod(case.outer) > 64,
        "more than 1024 rows": lambda case: prod(case.outer) > 1024,
        "misaligned weight": lambda case: case.layout.get("packed_weight") == "offset",
        **{f"bias {dtype}": lambda case, dtype=dtype: case.bias == dtype for dtype in DTYPES},  # type: ignore[misc]
    },
    bench=BENCH,
    bench_case=LinearCase(seed=8, dtype="bfloat16", outer=(64,), N=256, K=1024),
    memory="kept between calls: a copy of at most 1,024 rows of x, in fp32 on vectors and bf16 on tiles, with the sums of 128 "
    "rows between slices of K (tiles); in each thread 0.8 MiB for the sums that wait (vectors)",
)
