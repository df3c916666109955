"""quantize_rows_int8: what holds between calls."""

from dataclasses import replace

import torch

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Relation
from kernelpair.trial.session import Session
from properties.quantize_rows_int8.cases import QuantizeCase
from properties.shared.every_value import make_signalling, set_sign
from reference.quantize_rows_int8 import LEAST_RANGE


def _negated(case: QuantizeCase, session: Session) -> None:
    first = session.first.outputs
    again = session.run(replace(case, layout={}), session.inputs() | {"x": -session.inputs()["x"]}, judged=False).outputs
    session.expect_same("q", again["q"], -first["q"], "x negated")
    session.expect_same("scale", again["scale"], first["scale"], "x negated")


def _scaled(case: QuantizeCase, session: Session) -> None:
    """By a power of 2: every operation is scaled exactly, but in rows of next to nothing, whose range stays at its floor."""
    given, first = session.inputs(), session.first.outputs
    again = session.run(replace(case, layout={}), given | {"x": given["x"] * 4}, judged=False).outputs
    x = torch.nn.functional.pad(given["x"].float(), (0, 1))
    above = (x.abs().amax(-1) if case.symmetric else x.amax(-1) - x.amin(-1)) >= LEAST_RANGE
    for name in first:
        expected = first[name] * 4 if name == "scale" else first[name]
        session.expect_same(name, again[name][above], expected[above], "x times 4")


def _alone(case: QuantizeCase, session: Session) -> None:
    last = session.run(replace(case, layout={}), session.inputs() | {"x": session.inputs()["x"][-1:].clone()}, judged=False)
    for name, value in session.first.outputs.items():
        session.expect_same(name, last.outputs[name], value[-1:], "the last row in a call of its own")


def _permuted(case: QuantizeCase, session: Session) -> None:
    given, first = session.inputs(), session.first.outputs
    order = permutation(case.seed, "columns", case.width)
    again = session.run(replace(case, layout={}), given | {"x": given["x"][:, order]}, judged=False).outputs
    for name in first:
        session.expect_same(name, again[name], first[name][:, order] if name == "q" else first[name], "columns permuted")


def _not_finite(case: QuantizeCase, session: Session) -> None:
    """NaN, of either sign and quiet or not, or infinity anywhere in a row makes its scale NaN, and reaches no other row."""
    given, first = session.inputs(), session.first.outputs
    x, row, column = given["x"].clone(), case.rows // 2, case.seed % case.width
    x[row, column] = (torch.nan, torch.inf, -torch.inf, torch.nan)[case.seed % 4]
    if case.seed % 4 == 3:
        set_sign(x[row], column)
    if case.seed % 4 in (0, 3) and case.seed // 4 % 2:
        make_signalling(x[row], column)
    again = session.run(replace(case, layout={}), given | {"x": x}, judged=False).outputs
    session.expect(bool(again["scale"][row].isnan()), "scale", "a row that is not finite has the scale NaN")
    others = torch.arange(case.rows) != row
    for name in first:
        session.expect_same(name, again[name][others], first[name][others], "a row that is not finite among others")


def _not_empty(case: QuantizeCase) -> bool:
    return case.rows > 0 and case.width > 0


RELATIONS = {
    "negated": Relation(_negated, "negating x negates q, of symmetric rows", lambda case: case.symmetric),
    "scaled": Relation(
        _scaled,
        "x times a power of 2 has the same codes",
        lambda case: case.values not in ("floor", "outlier", "largest", "widest") and 1e-3 < case.magnitude < 3e4,
    ),
    "alone": Relation(_alone, "a row does not depend on the others", lambda case: case.rows > 0),
    "permute": Relation(_permuted, "permuting columns permutes q"),
    "not_finite": Relation(_not_finite, "NaN and infinity spoil their own row, and are seen", _not_empty),
}
