"""int8_linear: what holds between calls."""

from dataclasses import replace
from math import prod
from typing import Any

import torch

from kernelpair.call.layout import REPEATED
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.int8_linear.cases import Int8Case, exact
from properties.shared.every_value import set_sign
from properties.shared.linear_layers import KEPT, expect
from reference.pack_int8_weight import pack_int8_weight, unpack_int8_weight
from reference.quantize_rows_int8 import quantize_rows_int8

LARGE = 2.0**100  # of scales


def _rows(case: Int8Case) -> str:
    return "x" if case.form == "linear" else "q"


def _alone(case: Int8Case, session: Session) -> None:
    """The last row by itself."""
    given = session.inputs()
    if case.form == "linear":
        last: Any = tuple(size - 1 for size in case.outer)
        some = {"x": given["x"][last].clone()}
    else:
        last = (slice(case.outer[0] - 1, None),)
        some = {name: given[name][last].clone() if given[name] is not None else None for name in ("q", "scale", "azp")}
    result = session.run(replace(case, layout={}), given | some, judged=False)
    says = "a row by itself equals the row in company"
    expect(session, result.outputs["out"], session.first.outputs["out"][last], last, says)


def _parts(case: Int8Case, session: Session) -> None:
    """The weight in two parts along N."""
    given, half = session.inputs(), case.N // 2
    weight = unpack_int8_weight(given["data"], case.N, case.K)
    for columns in (slice(0, half), slice(half, None)):
        data, sums = pack_int8_weight(weight[columns])
        bias = given["bias"][columns].clone() if given["bias"] is not None else None
        other = {"data": data, "sums": sums, "N": len(sums), "w_scale": given["w_scale"][columns].clone(), "bias": bias}
        result = session.run(replace(case, layout={}), given | other, judged=False)
        part = (..., columns)
        says = "concatenated weights concatenate outputs"
        expect(session, result.outputs["out"], session.first.outputs["out"][part], part, says)


def _again(case: Int8Case, session: Session, changes: Inputs, says: str) -> None:
    result = session.run(replace(case, layout={}), session.inputs() | changes, judged=False)
    expect(session, result.outputs["out"], session.first.outputs["out"], (...,), says)


def _zero_bias(case: Int8Case, session: Session) -> None:
    _again(case, session, {"bias": torch.zeros(case.N)}, "a bias of zeros equals none")


def _dense(case: Int8Case, session: Session) -> None:
    _again(case, session, {}, "dense tensors")


def _zero_points(case: Int8Case, session: Session) -> None:
    """Where zero points are subtracted from the products one rounding more is allowed: that call has a bound of its own."""
    given = session.inputs()
    other = session.run(replace(case, layout={}), given | {"azp": torch.zeros(len(given["q"]), dtype=torch.int32)})
    got, expected = other.outputs["out"], session.first.outputs["out"]
    expect(session, got, expected, (...,), "zero points of 0", other.bound_of("out"))


def _negated(case: Int8Case, session: Session) -> None:
    given = session.inputs()
    result = session.run(replace(case, layout={}), given | {"x": -given["x"]}, judged=False)
    expect(session, -result.outputs["out"], session.first.outputs["out"], (...,), "x negated negates the result")


def _two_steps(case: Int8Case, session: Session) -> None:
    """The quantizer's bits, which the contract fixes, and int8_matmul of them."""
    given = session.inputs()
    q, scale, azp = quantize_rows_int8(given["x"].reshape(-1, case.K), case.symmetric)
    values = case.values if exact(case) else "uniform"  # else the scales of these rows are no powers of 2
    other = replace(case, form="matmul", outer=(len(q),), layout={}, values=values)
    rows = {"q": q, "scale": scale, "azp": azp}
    weight = {name: given[name] for name in ("data", "sums", "N", "K", "w_scale", "bias")}
    result = session.run_moved(other, {"form": "matmul", **rows, **weight, "out_dtype": case.dtype})
    expected = session.first.outputs["out"].reshape(len(q), case.N)
    session.expect_moved("out", result.outputs["out"], expected, "quantized first, then multiplied")


def _one_hot(case: Int8Case, session: Session) -> None:
    """Rows of q with a single 1 read columns of the weight, times its scales."""
    given = session.inputs()
    count = min(case.K, 5)
    chosen = torch.arange(count) * (case.K - 1) // max(count - 1, 1)
    q = torch.nn.functional.one_hot(chosen, case.K).to(torch.int8)
    rows = {"q": q, "scale": torch.ones(count), "azp": None, "bias": None, "out_dtype": "float32"}
    other = replace(case, outer=(count,), layout={}, dtype="float32")
    result = session.run(other, given | rows, judged=False)
    expected = unpack_int8_weight(given["data"], case.N, case.K)[:, chosen].T.float() * given["w_scale"]
    session.expect_same("out", result.outputs["out"] + 0.0, expected + 0.0, "one-hot rows read columns of the weight")


def _zeros(case: Int8Case, session: Session) -> None:
    """A row of zeros is the bias beside scales whose products with each other are infinite."""
    given = session.inputs()
    q, row, large = given["q"].clone(), case.seed % len(given["q"]), torch.tensor(LARGE)
    q[row] = 0
    azp = None if given["azp"] is None else torch.zeros(len(q), dtype=torch.int32)
    scales = {"scale": large.repeat(len(q)), "w_scale": large.repeat(case.N)}
    got = session.run(replace(case, layout={}), given | scales | {"q": q, "azp": azp}, judged=False).outputs["out"][row]
    bias = torch.zeros(case.N) if given["bias"] is None else given["bias"].float()
    session.expect_same("out", got + 0.0, bias.to(got.dtype) + 0.0, "a row of zeros is the bias, whatever the scales")


def _nan_stays(case: Int8Case, session: Session) -> None:
    """NaN in one row of x and in one scale of the weight reaches its row and its column alone; where there is a single row, one
    of the two has it."""
    given = session.inputs()
    row, column = tuple(size // 2 for size in case.outer), case.N // 2
    x, w_scale = given["x"].clone(), given["w_scale"].clone()
    in_x, many = case.seed // 2 % 2 == 0, prod(case.outer) > 1
    if in_x or many:
        x[row][case.seed % case.K] = (torch.nan, torch.inf)[case.seed % 2]
        if case.seed % 8 == 0:
            set_sign(x[row], case.seed % case.K)
    if many or not in_x:
        w_scale[column] = torch.nan
    several = {name: kind for name, kind in case.layout.items() if name != "w_scale" or kind not in REPEATED}
    got = session.run(replace(case, layout=several), given | {"x": x, "w_scale": w_scale}, judged=False).outputs["out"]
    clean = torch.ones(got.shape, dtype=torch.bool)
    clean[row] = not (in_x or many)
    clean[..., column] = False
    session.expect(bool(got[~clean].isnan().all()), "out", "NaN reaches its row and its column")
    expect(session, got[clean], session.first.outputs["out"][clean], (clean,), "NaN stays in its row and its column")


def _has_rows(case: Int8Case) -> bool:
    return 0 not in case.outer and case.layout.get(_rows(case)) not in REPEATED


def _linear_with_rows(case: Int8Case) -> bool:
    return case.form == "linear" and _has_rows(case)


RELATIONS = {
    "alone": Relation(_alone, "a row does not depend on the other rows", _has_rows),
    "parts": Relation(_parts, "concatenating weights along N concatenates the outputs", lambda case: case.N > 1),
    "zero_bias": Relation(_zero_bias, "no bias equals a bias of zeros", lambda case: not case.bias),
    "layout": Relation(_dense, "strides and offsets do not matter"),
    "zero_points": Relation(_zero_points, "zero points of 0 equal none", lambda case: case.form == "matmul" and case.symmetric),
    "negated": Relation(
        _negated,
        "negating x negates the result, of symmetric rows without bias",
        lambda case: case.form == "linear" and case.symmetric and not case.bias,
    ),
    "two_steps": Relation(_two_steps, "int8_linear is the quantizer and int8_matmul in turn", _linear_with_rows),
    "one_hot": Relation(_one_hot, "one-hot rows read columns of the weight", lambda case: case.form == "matmul"),
    "zeros": Relation(
        _zeros, "a row of zeros is the bias, whatever the scales", lambda case: case.form == "matmul" and _has_rows(case)
    ),
    "tensors": KEPT,
    "nan": Relation(_nan_stays, "NaN in a row of x or a scale of the weight stays in its row or column", _linear_with_rows),
}
