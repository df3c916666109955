"""fp8_to_float on trial: every code, anywhere in memory, as every dtype; bit for bit, signs of zeros included."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import READ_ROWS
from kernelpair.call.values import generator
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Bench, BenchRow, Cases, Coverage, Exact, Inputs, Pair, Relation, Signature
from kernelpair.trial.session import Session
from optimized import operator
from properties.shared.strategies import any_of, around, between, common, near, shrinking, together
from properties.shared.wrong_calls import cast, changed, replaced
from properties.thresholds import branches
from reference.fp8_to_float import fp8_to_float as reference

ROWS = (1, 2, 3, 33, 0)
WIDTHS = (1, 2, 7, *around(16, 32), 13, 22, 96, 256, 300, 0)
TALL = 70_000  # rows, or columns, of one case in 32 each: more than 16 bits count
MODELS = ((256, 7168), (18_432, 24), (3, 65_536))
LAYOUTS = {"w": (*READ_ROWS, "strided", "transposed", "far_columns")}


@dataclass(frozen=True, kw_only=True)
class Fp8Case(Case):
    """Codes [*outer, width]: all 256 in turn from some one on, then any."""

    outer: tuple[int, ...] = (1,)
    width: int = 1


FIELDS = together({**common(LAYOUTS, []), "dtype": any_of("float32", "bfloat16", "float16")})


@st.composite
def strategy(draw: st.DrawFn) -> Fp8Case:
    """Any shape, strides and dtype."""
    rows, width = draw(any_of(*ROWS), label="rows"), draw(any_of(*WIDTHS), label="width")
    rare = draw(between(0, 31), label="rare")
    if rare == 31:
        return Fp8Case(**near(draw(FIELDS)), outer=(TALL,), width=min(width, 3))
    if rare == 30:  # half of them apart, which others seldom are
        fields = near(draw(FIELDS))
        strided = {"layout": {"w": "strided"}} if fields["seed"] % 2 else {}
        return Fp8Case(**fields | strided, outer=(min(rows, 3),), width=TALL)
    shapes = [(rows,), (2, rows), (rows, 1, 3), (2, 3, 2, 2), (2, 3, 1, 2, 2), (2, 1, 2, 3, 1, 2)] + ([()] if rows == 1 else [])
    return Fp8Case(**draw(FIELDS), outer=draw(any_of(*shapes), label="outer"), width=width)


@cache
def models(slow: bool) -> st.SearchStrategy[Fp8Case]:
    """Layers of models: a slow candidate gets the same, for each code takes a few steps."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> Fp8Case:
    fields, (rows, width) = draw(FIELDS), draw(any_of(*MODELS), label="rows, width")
    return Fp8Case(**fields, outer=(draw(shrinking(rows), label="rows"),), width=draw(shrinking(width), label="width"))


def inputs(case: Fp8Case) -> Inputs:
    """Codes."""
    shape = (*case.outer, case.width)
    count = prod(shape)
    codes = generator(case.seed, "w").integers(0, 255, size=count, dtype="uint8", endpoint=True)
    first = min(count, 256)
    codes[:first] = (torch.arange(first) + case.seed % 256).to(torch.uint8).numpy()
    return {"w": torch.from_numpy(codes).reshape(shape).view(torch.float8_e4m3fn), "dtype": getattr(torch, case.dtype)}


def _one_nan(out: Tensor) -> Tensor:
    """All NaN alike, for any stands for one."""
    return out.masked_fill(out.isnan(), torch.nan)


def converted(w: Tensor, dtype: Any) -> Tensor:
    """The kernel."""
    result: Tensor = operator("fp8_to_float")(w, dtype)
    return result


def _dense(case: Fp8Case, session: Session) -> None:
    result = session.run_moved(replace(case, layout={}), session.inputs())
    got, expected = _one_nan(result.outputs["out"]), _one_nan(session.first.outputs["out"])
    session.expect_moved("out", got, expected, "dense codes")


def _negated(case: Fp8Case, session: Session) -> None:
    """The sign of every code turned, that of zeros too."""
    flipped = (session.inputs()["w"].view(torch.uint8) ^ 128).view(torch.float8_e4m3fn)
    result = session.run(replace(case, layout={}), session.inputs() | {"w": flipped}, judged=False)
    expected = session.first.outputs["out"]
    got, turned = _one_nan(result.outputs["out"]), _one_nan(-expected)
    session.expect_same("out", got, turned, "codes of the other sign are the negated numbers")


def _row(rows: int, width: int) -> BenchRow:
    def arguments() -> Inputs:
        codes = torch.randint(0, 126, (rows, width), dtype=torch.uint8)
        return {"w": codes.view(torch.float8_e4m3fn), "dtype": torch.bfloat16}

    return BenchRow(
        f"{rows} x {width}",
        arguments,
        bytes=3.0 * rows * width,
        peers={"torch": lambda given: lambda: given["w"].to(torch.bfloat16)},
    )


MEASURES: dict[str, Callable[[Any], int]] = {
    "columns": lambda case: case.width,
    "width": lambda case: case.width,
    "elements": lambda case: prod(case.outer) * case.width,
}

PAIR = Pair(
    name="fp8_to_float",
    reference=reference,
    optimized=converted,
    cases=Cases(type=Fp8Case, version=1, strategy=strategy(), inputs=inputs, models=models),
    signature=Signature(layouts=LAYOUTS),
    truth=Exact(any_nan=True),
    relations={
        "layout": Relation(_dense, "strides do not matter"),
        "negated": Relation(_negated, "codes of the other sign are the negated numbers, zeros included"),
    },
    wrong_calls={
        "scalar": changed("w", lambda w: w.new_zeros(()), ValueError),
        "other_fp8": cast("w", torch.float8_e5m2),
        "codes_of_no_negative_zero": cast("w", torch.float8_e4m3fnuz),
        "bytes": cast("w", torch.uint8),
        "none": replaced("w", None, TypeError),
        "dtype_integer": replaced("dtype", torch.int32, TypeError),
        "dtype_float8": replaced("dtype", torch.float8_e4m3fn, TypeError),
        "dtype_none": replaced("dtype", None, TypeError),
    },
    fuzz=lambda case, inputs: {"w"},
    coverage=Coverage(
        edges={
            "all codes": lambda case: prod(case.outer) * case.width >= 256,
            "no rows": lambda case: 0 in case.outer,
            "no columns": lambda case: case.width == 0,
            "more columns than 16 bits count": lambda case: case.width > 2**16 and 0 not in case.outer,
            "as many apart": lambda case: case.width > 2**16 and case.layout.get("w") in ("strided", "transposed"),
            "one dimension": lambda case: case.outer == (),
            "tail of a vector": lambda case: case.width % 16 > 0 and case.width > 16,
            "transposed": lambda case: case.layout.get("w") == "transposed" and case.width > 1 and prod(case.outer) > 1,
            **{kind: lambda case, kind=kind: case.dtype == kind for kind in ("float32", "bfloat16", "float16")},  # type: ignore[misc]
        },
        measures=MEASURES,
        branches=partial(branches, "fp8_to_float"),
    ),
    bench=Bench(
        rows=[_row(7168, 2048), _row(2048, 7168)],
        case=Fp8Case(seed=5, dtype="bfloat16", outer=(16,), width=1024),
        memory="none",
    ),
)
