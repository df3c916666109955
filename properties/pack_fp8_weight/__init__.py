"""pack_fp8_weight and its inverse on trial: codes that move into panels and back, zeros around them, and a copy of the scales."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import ANY_STRIDES, READ_ONLY
from kernelpair.call.values import generator, uniform
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Relation, Signature, WrongCall
from kernelpair.trial.session import Session
from optimized import operator
from properties.shared.strategies import any_of, around, common, shrinking, together
from properties.shared.wrong_calls import INF, NAN, cast, changed, grown, replaced
from properties.thresholds import branches
from reference import pack_fp8_weight as reference

RESULTS = ("data", "scales", "unpacked")
OUTPUTS = (1, 7, *around(16, 32, 64), 96, 416)  # N
DEPTHS = (1, 2, 3, *around(32, 64, 128), 1023)  # K
MODELS = ((18_432, 24), (70, 7168), (1, 65_536), (2048, 320))
BLOCKS = ((128, 128), (64, 128), (32, 64), (3, 5), (1, 1), (1, 65_536), (65_536, 65_536))
LAYOUTS = {"weight": (*READ_ONLY, "strided", "transposed"), "scales": ANY_STRIDES}


@dataclass(frozen=True, kw_only=True)
class PackFp8Case(Case):
    """A weight [N, K] of any codes, with a scale for each block."""

    N: int = 1
    K: int = 1
    block: tuple[int, int] = (128, 128)


FIELDS = together({**common(LAYOUTS, []), "block": any_of(*BLOCKS)})


@st.composite
def strategy(draw: st.DrawFn) -> PackFp8Case:
    """Any size, blocks and strides."""
    return PackFp8Case(**draw(FIELDS), N=draw(any_of(*OUTPUTS), label="N"), K=draw(any_of(*DEPTHS), label="K"))


@cache
def models(slow: bool) -> st.SearchStrategy[PackFp8Case]:
    """Hidden layers and the longest rows: bytes that move, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> PackFp8Case:
    fields, (N, K) = draw(FIELDS), draw(any_of(*MODELS), label="N, K")
    return PackFp8Case(**fields, N=draw(shrinking(N), label="N"), K=draw(shrinking(K), label="K"))


def inputs(case: PackFp8Case) -> Inputs:
    """All 256 codes, NaN among them, and scales of either sign."""
    codes = generator(case.seed, "weight").integers(0, 255, size=(case.N, case.K), dtype="uint8", endpoint=True)
    block_n, block_k = case.block
    scales = uniform(case.seed, "scales", (-(-case.N // block_n), -(-case.K // block_k)))
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return {"weight": weight, "scales": scales, "block_n": block_n, "block_k": block_k}


def _codes(weight: Tensor) -> Tensor:
    return weight.view(torch.uint8)


def _reference(
    weight: Tensor, scales: Tensor, block_n: int, block_k: int, more: tuple[int, int] = (0, 0)
) -> tuple[Tensor, Tensor, Tensor]:
    data, kept = reference.pack_fp8_weight(weight, scales, block_n, block_k)
    return data, kept, _codes(reference.unpack_fp8_weight(data, weight.shape[0] + more[0], weight.shape[1] + more[1]))


def packed_and_back(
    weight: Tensor, scales: Tensor, block_n: int, block_k: int, more: tuple[int, int] = (0, 0)
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel: packed, and unpacked again; as a weight with `more` outputs and columns in a wrong call."""
    data, kept = operator("pack_fp8_weight")(weight, scales, block_n, block_k)
    return data, kept, _codes(operator("unpack_fp8_weight")(data, weight.shape[0] + more[0], weight.shape[1] + more[1]))


def _inverse(case: PackFp8Case, session: Session) -> None:
    expected = _codes(session.inputs()["weight"])
    session.expect_same("unpacked", session.first.outputs["unpacked"], expected, "unpack(pack(W)) is W")


def _dense(case: PackFp8Case, session: Session) -> None:
    result = session.run(replace(case, layout={}), session.inputs(), judged=False)
    for name in RESULTS:
        session.expect_same(name, result.outputs[name], session.first.outputs[name], "a dense weight and dense scales")


def _parts(case: PackFp8Case, session: Session) -> None:
    """Panels are independent: a weight that begins at a panel packs to the panels from there on."""
    first, given = case.N // 64 * 32, session.inputs()
    rest = _codes(given["weight"])[first:].clone().view(torch.float8_e4m3fn)
    one = {"weight": rest, "scales": torch.ones(1, 1), "block_n": case.N, "block_k": case.K}
    result = session.run(replace(case, layout={}), one, judged=False)
    session.expect_same("data", result.outputs["data"], session.first.outputs["data"][first // 32 :], "the later panels alone")


def _last_scale(value: float) -> WrongCall:
    def set_last(scales: Tensor) -> Tensor:
        wrong = scales.clone()
        wrong[-1, -1] = value
        return wrong

    return changed("scales", set_last, ValueError)


MEASURES: dict[str, Callable[[Any], int]] = {
    "columns": lambda case: case.N,
    "width": lambda case: case.K,
    "elements": lambda case: case.N * case.K,
}

PAIR = Pair(
    name="pack_fp8_weight",
    reference=_reference,
    optimized=packed_and_back,
    cases=Cases(type=PackFp8Case, version=1, strategy=strategy(), inputs=inputs, models=models),
    signature=Signature(results=RESULTS, dtypes=(), layouts=LAYOUTS),
    truth=Exact(),
    relations={
        "inverse": Relation(_inverse, "unpacking returns the codes, bit for bit"),
        "layout": Relation(_dense, "strides do not matter"),
        "parts": Relation(_parts, "panels do not depend on each other"),
    },
    wrong_calls={
        "rank": changed("weight", lambda weight: weight[0], ValueError),
        "no_outputs": changed("weight", lambda weight: weight[:0], ValueError),
        "no_columns": changed("weight", lambda weight: weight[:, :0], ValueError),
        "floats": cast("weight", torch.float32),
        "bytes": cast("weight", torch.uint8),
        "other_fp8": cast("weight", torch.float8_e5m2),
        "codes_of_no_negative_zero": cast("weight", torch.float8_e4m3fnuz),
        "none": replaced("weight", None, TypeError),
        "scales_outputs": grown("scales", 0),
        "scales_columns": grown("scales", 1),
        "scales_rank": changed("scales", lambda scales: scales[0], ValueError),
        "scales_dtype": cast("scales", torch.bfloat16),
        "scales_none": replaced("scales", None, TypeError),
        "scales_nan": _last_scale(NAN),
        "scales_infinite": _last_scale(-INF),
        "block_n_zero": replaced("block_n", 0, ValueError),
        "block_k_negative": replaced("block_k", -1, ValueError),
        "unpacked_wider": WrongCall(lambda case, given: given | {"more": (32, 0)}, ValueError, ("data", "N")),
        "unpacked_longer": WrongCall(lambda case, given: given | {"more": (0, 32)}, ValueError, ("data", "K")),
    },
    coverage=Coverage(
        edges={
            "N = 1": lambda case: case.N == 1,
            "partial panel": lambda case: case.N % 32 > 0,
            "half a panel": lambda case: 0 < case.N % 32 <= 16,
            "whole panels": lambda case: case.N % 32 == 0,
            "odd K": lambda case: case.K % 2 > 0,
            "K that cuts a block": lambda case: case.K % 32 > 0,
            "one scale": lambda case: case.block == (65_536, 65_536),
            "a scale for each output": lambda case: case.block == (1, 65_536) and case.N > 1,
            "partial scale blocks": lambda case: case.N % case.block[0] > 0 and case.K % case.block[1] > 0,
            "transposed": lambda case: case.layout.get("weight") == "transposed" and case.K > 1,
        },
        measures=MEASURES,
        branches=partial(branches, "pack_fp8_weight"),
    ),
)
