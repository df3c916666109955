"""packed_linear: what holds between calls."""

from dataclasses import replace
from math import prod

import torch

from kernelpair.contract.pair import Relation
from kernelpair.trial.session import Session
from properties.packed_linear.cases import LinearCase
from properties.shared.linear_layers import KEPT, expect, has_rows
from reference.pack_linear_weight import pack_linear_weight, unpack_linear_weight

# --- relations ---


def _alone(case: LinearCase, session: Session) -> None:
    """The last row by itself."""
    given = session.inputs()
    last = tuple(size - 1 for size in case.outer)
    result = session.run(replace(case, layout={}), given | {"x": given["x"][last].clone()}, judged=False)
    says = "a row by itself equals the row in company"
    expect(session, result.outputs["out"], session.first.outputs["out"][last], last, says)


def _parts(case: LinearCase, session: Session) -> None:
    """The weight in two parts along N."""
    given = session.inputs()
    half = case.N // 2
    weight = unpack_linear_weight(given["packed_weight"], case.N, case.K)
    for columns in (slice(0, half), slice(half, None)):
        bias = given["bias"][columns].clone() if given["bias"] is not None else None
        part = weight[columns]
        other = {"packed_weight": pack_linear_weight(part), "N": len(part), "bias": bias}
        result = session.run(replace(case, layout={}), given | other, judged=False)
        says = "concatenated weights concatenate outputs"
        expect(session, result.outputs["out"], session.first.outputs["out"][..., columns], (..., columns), says)


def _zero_bias(case: LinearCase, session: Session) -> None:
    given = session.inputs()
    result = session.run(inputs=given | {"bias": torch.zeros(case.N)}, judged=False)
    expect(session, result.outputs["out"], session.first.outputs["out"], ..., "a bias of zeros equals none")


def _dense(case: LinearCase, session: Session) -> None:
    result = session.run(replace(case, layout={}), session.inputs(), judged=False)
    expect(session, result.outputs["out"], session.first.outputs["out"], ..., "dense tensors")


def _nan_stays(case: LinearCase, session: Session) -> None:
    """NaN in one row of x and in one row of W reaches its row and its column, and nothing else; where there is a single row, one
    of the two has it."""
    given = session.inputs()
    weight = unpack_linear_weight(given["packed_weight"], case.N, case.K)
    row = tuple(size // 2 for size in case.outer)
    column = case.N // 2
    x = given["x"].clone()
    in_x, several = case.seed % 2 == 0, prod(case.outer) > 1
    if in_x or several:
        x[row][case.K // 2] = float("nan")
    if several or not in_x:
        weight[column, case.K - 1] = float("nan")
    got = session.run(inputs=given | {"x": x, "packed_weight": pack_linear_weight(weight)}, judged=False).outputs["out"]
    clean = torch.ones(got.shape, dtype=torch.bool)
    clean[row] = not (in_x or several)
    clean[..., column] = False
    session.expect(bool(got[~clean].isnan().all()), "out", "NaN reaches its row and its column")
    expect(session, got[clean], session.first.outputs["out"][clean], clean, "NaN stays in its row and its column")


RELATIONS = {
    "alone": Relation(_alone, "a row does not depend on the other rows", has_rows),
    "parts": Relation(_parts, "concatenating weights along N concatenates the outputs", lambda case: case.N > 1),
    "zero_bias": Relation(_zero_bias, "no bias equals a bias of zeros", lambda case: not case.bias),
    "nan": Relation(_nan_stays, "NaN in a row of x or of the weight stays in its row or column", has_rows),
    "tensors": KEPT,
    "layout": Relation(_dense, "strides and offsets do not matter"),
}
