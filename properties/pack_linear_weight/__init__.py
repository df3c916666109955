"""pack_linear_weight and its inverse on trial: bits that move into panels and back, padding that is zero."""

from dataclasses import dataclass, replace
from functools import cache, partial

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
from properties.thresholds import branches
from reference import pack_linear_weight as reference

OUTPUTS = (1, 7, 12, *around(16), 24, *around(32, 48, 64), 416)  # N
DEPTHS = (1, 2, 3, *around(32, 64), 96, 512)  # K
MODELS = ((152_064, 24), (70, 14_336), (2304, 900), (5120, 320))
LAYOUTS = {"weight": (*READ_ONLY, "strided", "transposed")}


@dataclass(frozen=True, kw_only=True)
class PackCase(Case):
    """A weight [N, K]."""

    N: int = 1
    K: int = 1


FIELDS = together(common(LAYOUTS, []))


@st.composite
def strategy(draw: st.DrawFn) -> PackCase:
    """Any size, dtype and strides."""
    fields = draw(FIELDS)
    dtype = draw(any_of("float32", "bfloat16", "float16"))
    return PackCase(**fields, dtype=dtype, N=draw(any_of(*OUTPUTS)), K=draw(any_of(*DEPTHS)))


@cache
def models(slow: bool) -> st.SearchStrategy[PackCase]:
    """A vocabulary, a wide hidden layer: bytes that move, so a slow candidate gets the same."""
    return _models()


@st.composite
def _models(draw: st.DrawFn) -> PackCase:
    fields, dtype = draw(FIELDS), draw(any_of("float32", "bfloat16", "float16"))
    N, K = draw(any_of(*MODELS), label="N, K")
    return PackCase(**fields, dtype=dtype, N=draw(shrinking(N), label="N"), K=draw(shrinking(K), label="K"))


def inputs(case: PackCase) -> Inputs:
    """Every bit pattern of the dtype."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    drawn = generator(case.seed, "weight").integers(0, 256, size=(case.N, case.K * dtype.itemsize), dtype="uint8")
    return {"weight": torch.from_numpy(drawn).view(dtype)}


def _both(weight: Tensor, more: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor]:
    packed = reference.pack_linear_weight(weight)
    return packed, reference.unpack_linear_weight(packed, weight.shape[0] + more[0], weight.shape[1] + more[1])


def packed_and_back(weight: Tensor, more: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor]:
    """The kernel: packed, and unpacked again; as a weight with `more` outputs and columns in a wrong call."""
    packed: Tensor = operator("pack_linear_weight")(weight)
    return packed, operator("unpack_linear_weight")(packed, weight.shape[0] + more[0], weight.shape[1] + more[1])


def _inverse(case: PackCase, session: Session) -> None:
    session.expect_same(
        "unpacked", session.first.outputs["unpacked"], session.inputs()["weight"], "unpack(pack(W)) is W"
    )


def _dense(case: PackCase, session: Session) -> None:
    result = session.run(replace(case, layout={}), session.inputs(), judged=False)
    session.expect_same("packed", result.outputs["packed"], session.first.outputs["packed"], "a dense weight")


PAIR = Pair(
    name="pack_linear_weight",
    reference=_both,
    optimized=packed_and_back,
    cases=Cases(
        type=PackCase,
        version=1,
        strategy=strategy(),
        inputs=inputs,
        models=models,
    ),
    signature=Signature(
        results=("packed", "unpacked"),
        layouts=LAYOUTS,
    ),
    truth=Exact(),
    relations={
        "inverse": Relation(_inverse, "unpacking returns the weight, bit for bit"),
        "layout": Relation(_dense, "strides do not matter"),
    },
    wrong_calls={
        "rank": WrongCall(lambda case, given: {"weight": given["weight"][0]}, ValueError, "weight"),
        "no_outputs": WrongCall(lambda case, given: {"weight": given["weight"][:0]}, ValueError, "weight"),
        "no_columns": WrongCall(lambda case, given: {"weight": given["weight"][:, :0]}, ValueError, "weight"),
        "integers": WrongCall(lambda case, given: {"weight": torch.ones(2, 2, dtype=torch.int32)}, TypeError, "weight"),
        "none": WrongCall(lambda case, given: {"weight": None}, TypeError, "weight"),
        "unpacked_wider": WrongCall(lambda case, given: given | {"more": (32, 0)}, ValueError, ("packed_weight", "N")),
        "unpacked_longer": WrongCall(lambda case, given: given | {"more": (0, 32)}, ValueError, ("packed_weight", "K")),
    },
    coverage=Coverage(
        edges={
            "N = 1": lambda case: case.N == 1,
            "K = 1": lambda case: case.K == 1,
            "partial panel": lambda case: case.N % 32 > 0,
            "half a panel": lambda case: 0 < case.N % 32 <= 16,
            "whole panels": lambda case: case.N % 32 == 0,
            "odd K": lambda case: case.K % 2 == 1,
            "transposed": lambda case: case.layout.get("weight") == "transposed" and case.K > 1,
        },
        measures={"columns": lambda case: case.N, "elements": lambda case: case.N * case.K},
        branches=partial(branches, "pack_linear_weight"),
    ),
)
