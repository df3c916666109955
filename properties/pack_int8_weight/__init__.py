"""pack_int8_weight and its inverse on trial: bytes that move into panels and back, zeros around them, and sums of rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.layout import READ_ONLY
from kernelpair.call.values import generator
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, Pair, Relation, Signature, WrongCall
from kernelpair.trial.session import Session
from optimized import operator
from properties.shared.strategies import any_of, around, common, shrinking, together
from properties.shared.wrong_calls import cast, changed, replaced
from properties.thresholds import branches
from reference import pack_int8_weight as reference

RESULTS = ("data", "sums", "unpacked")
OUTPUTS = (1, 7, *around(16, 32, 64), 96, 416)  # N
DEPTHS = (1, 2, 3, 4, 5, *around(32, 64, 128), 1023)  # K
MODELS = ((28_672, 24), (70, 14_336), (1, 65_536), (5120, 320))
VALUES = ("any", "any", "ends", "lowest")
LAYOUTS = {"weight": (*READ_ONLY, "strided", "transposed")}


@dataclass(frozen=True, kw_only=True)
class PackInt8Case(Case):
    """A weight [N, K] of bytes."""

    N: int = 1
    K: int = 1
    values: str = "any"
    """`ends`: -128 and 127 alone; `lowest`: -128 alone, the largest sums."""


FIELDS = together({**common(LAYOUTS, []), "values": any_of(*VALUES)})


@st.composite
def strategy(draw: st.DrawFn) -> PackInt8Case:
    """Any size and strides."""
    return PackInt8Case(**draw(FIELDS), N=draw(any_of(*OUTPUTS), label="N"), K=draw(any_of(*DEPTHS), label="K"))


@cache
def models(slow: bool) -> st.SearchStrategy[PackInt8Case]:
    """Hidden layers and the longest rows: bytes that move, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> PackInt8Case:
    fields, (N, K) = draw(FIELDS), draw(any_of(*MODELS), label="N, K")
    return PackInt8Case(**fields, N=draw(shrinking(N), label="N"), K=draw(shrinking(K), label="K"))


def inputs(case: PackInt8Case) -> Inputs:
    """Bytes."""
    drawn = generator(case.seed, "weight").integers(-128, 127, size=(case.N, case.K), dtype="int8", endpoint=True)
    weight = torch.from_numpy(drawn)
    if case.values == "ends":
        weight = torch.where(weight < 0, -128, 127).to(torch.int8)
    return {"weight": torch.full_like(weight, -128) if case.values == "lowest" else weight}


def _reference(weight: Tensor, more: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor, Tensor]:
    data, sums = reference.pack_int8_weight(weight)
    return data, sums, reference.unpack_int8_weight(data, weight.shape[0] + more[0], weight.shape[1] + more[1])


def packed_and_back(weight: Tensor, more: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel: packed, and unpacked again; as a weight with `more` outputs and columns in a wrong call."""
    data, sums = operator("pack_int8_weight")(weight)
    return data, sums, operator("unpack_int8_weight")(data, weight.shape[0] + more[0], weight.shape[1] + more[1])


def _inverse(case: PackInt8Case, session: Session) -> None:
    session.expect_same("unpacked", session.first.outputs["unpacked"], session.inputs()["weight"], "unpack(pack(W)) is W")


def _dense(case: PackInt8Case, session: Session) -> None:
    result = session.run(replace(case, layout={}), session.inputs(), judged=False)
    for name in RESULTS:
        session.expect_same(name, result.outputs[name], session.first.outputs[name], "a dense weight")


def _parts(case: PackInt8Case, session: Session) -> None:
    """Panels are independent: a weight that begins at a panel packs to the panels from there on."""
    first = case.N // 64 * 32
    result = session.run(replace(case, layout={}), {"weight": session.inputs()["weight"][first:].clone()}, judged=False)
    session.expect_same("data", result.outputs["data"], session.first.outputs["data"][first // 32 :], "the later panels alone")
    session.expect_same("sums", result.outputs["sums"], session.first.outputs["sums"][first:], "the later panels alone")


MEASURES: dict[str, Callable[[Any], int]] = {
    "columns": lambda case: case.N,
    "width": lambda case: case.K,
    "elements": lambda case: case.N * case.K,
}

PAIR = Pair(
    name="pack_int8_weight",
    reference=_reference,
    optimized=packed_and_back,
    cases=Cases(type=PackInt8Case, version=1, strategy=strategy(), inputs=inputs, models=models),
    signature=Signature(results=RESULTS, dtypes=(), layouts=LAYOUTS),
    truth=Exact(),
    relations={
        "inverse": Relation(_inverse, "unpacking returns the weight, bit for bit"),
        "layout": Relation(_dense, "strides do not matter"),
        "parts": Relation(_parts, "panels do not depend on each other"),
    },
    wrong_calls={
        "rank": changed("weight", lambda weight: weight[0], ValueError),
        "no_outputs": changed("weight", lambda weight: weight[:0], ValueError),
        "no_columns": changed("weight", lambda weight: weight[:, :0], ValueError),
        "too_long": changed("weight", lambda weight: weight.new_zeros(1, 65_537), ValueError),
        "floats": cast("weight", torch.float32),
        "unsigned": cast("weight", torch.uint8),
        "none": replaced("weight", None, TypeError),
        "unpacked_wider": WrongCall(lambda case, given: given | {"more": (32, 0)}, ValueError, ("data", "N")),
        "unpacked_longer": WrongCall(lambda case, given: given | {"more": (0, 64)}, ValueError, ("data", "K")),
    },
    coverage=Coverage(
        edges={
            "N = 1": lambda case: case.N == 1,
            "partial panel": lambda case: case.N % 32 > 0,
            "half a panel": lambda case: 0 < case.N % 32 <= 16,
            "whole panels": lambda case: case.N % 32 == 0,
            "K that cuts a quad": lambda case: case.K % 4 > 0,
            "K that cuts a block": lambda case: case.K % 64 > 0,
            "lowest sums": lambda case: case.values == "lowest" and case.K > 512,
            "transposed": lambda case: case.layout.get("weight") == "transposed" and case.K > 1,
        },
        measures=MEASURES,
        branches=partial(branches, "pack_int8_weight"),
    ),
)
