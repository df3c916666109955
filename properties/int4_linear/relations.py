"""int4_linear: what holds between calls."""

from dataclasses import replace

import torch

from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import Session
from properties.int4_linear.cases import Int4Case, packed_parts, plain_parts
from properties.shared.linear_layers import SCALED_RELATIONS, again, expect, has_rows


def _parts(case: Int4Case, session: Session) -> None:
    """The weight in two parts along N."""
    given, half = session.inputs(), case.N // 2
    codes, scales, zeros = plain_parts(given)
    for columns in (slice(0, half), slice(half, None)):
        bias = given["bias"][columns].clone() if given["bias"] is not None else None
        part = packed_parts(codes[columns], scales[columns], zeros[columns], case.group)
        got, expected = again(case, session, given | part | {"bias": bias}), session.first.outputs["out"][..., columns]
        expect(session, got, expected, (..., columns), "concatenated weights concatenate outputs")


def _shifted(case: Int4Case, session: Session) -> None:
    """One more in all codes and zero points leaves their differences as they were."""
    given = session.inputs()
    codes, scales, zeros = plain_parts(given)
    codes, zeros = codes.clamp(max=14), zeros.clamp(max=15 if case.points == "any" else 14)
    low, high = (packed_parts(codes + by, scales, zeros + by, case.group) for by in (0, 1))
    says = "one more in codes and zero points changes nothing"
    session.expect_same("out", again(case, session, given | high), again(case, session, given | low), says)


def _halves(case: Int4Case, session: Session) -> None:
    """Each group as two halves with its scale and its zero point."""
    given, half = session.inputs(), case.group // 2
    codes, scales, zeros = plain_parts(given)
    count = -(-case.K // half)
    scales, zeros = (tensor.repeat_interleave(2, dim=-1)[:, :count] for tensor in (scales, zeros))
    halved = replace(case, layout={}, group=half)
    other = session.run(halved, given | packed_parts(codes, scales, zeros, half))
    says, theirs = "a group equals two halves with its parameters", other.bound_of("out")  # their sums may be the larger ones
    expect(session, other.outputs["out"], session.first.outputs["out"], (...,), says, theirs)


def _other_activation(case: Int4Case, session: Session) -> None:
    """Rows that int8 holds exactly are the same in both ways."""
    given = session.inputs()
    other = given | {"activation": "x" if case.activation == "int8" else "int8"}
    says = "rows that int8 holds exactly are the same in both ways"
    expect(session, again(case, session, other), session.first.outputs["out"], (...,), says)


def _nan_stays(case: Int4Case, session: Session) -> None:
    """NaN in a row of x reaches all of that row, also where weights are 0, and nothing else."""
    given: Inputs = session.inputs()
    row = tuple(size // 2 for size in case.outer)
    x = given["x"].clone()
    x[row][case.seed % case.K] = torch.nan
    got, first = again(case, session, given | {"x": x}), session.first.outputs["out"]
    clean = torch.ones(got.shape, dtype=torch.bool)
    clean[row] = False
    session.expect(bool(got[~clean].isnan().all()), "out", "NaN reaches its row")
    expect(session, got[clean], first[clean], (clean,), "NaN stays in its row")


RELATIONS = {
    **SCALED_RELATIONS,
    "parts": Relation(_parts, "concatenating weights along N concatenates the results", lambda case: case.N > 1),
    "shifted": Relation(_shifted, "one more in all codes and zero points changes nothing, bit for bit"),
    "halves": Relation(_halves, "a group equals two halves with its parameters",
                       lambda case: case.group > 0 and case.group % 2 == 0),
    "activations": Relation(_other_activation, "rows that int8 holds exactly are the same in both ways",
                            lambda case: case.values == "integers"),
    "nan": Relation(_nan_stays, "NaN in a row of x reaches all of that row and nothing else", has_rows),
}  # fmt: skip
