"""act_and_mul: what holds between calls."""

from dataclasses import replace
from itertools import product
from math import isnan, prod

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Relation
from kernelpair.trial.session import Session
from properties.act_and_mul.cases import HUGE, ActCase


def _with(session: Session, gate: Tensor, up: Tensor) -> dict[str, object]:
    return session.inputs() | {"x": torch.cat([gate, up], dim=-1)}


def _halves(session: Session) -> tuple[Tensor, Tensor]:
    gate, up = session.inputs()["x"].chunk(2, dim=-1)
    return gate, up


def _plain(case: ActCase) -> ActCase:
    return replace(case, layout={})


def _scaled(case: ActCase, session: Session) -> None:
    """Where neither result is subnormal, nor the least normal number, to which results below it may have been rounded. Huge
    numbers become smaller."""
    (gate, up), first = _halves(session), session.first_as(_plain(case)).outputs["out"]
    power = (1 + case.seed % 2) * (-1 if case.other == HUGE else 1)
    again = session.run(_plain(case), _with(session, gate, up * 2**power), judged=False)
    expected = first * 2**power
    normal = torch.minimum(first.abs(), expected.abs()) > torch.finfo(first.dtype).tiny
    session.expect_same("out", again.outputs["out"][normal], expected[normal], f"the second half times 2^{power}")


def _odd(case: ActCase, session: Session) -> None:
    gate, up = _halves(session)
    again = session.run(_plain(case), _with(session, gate, -up), judged=False)
    expected = -session.first_as(_plain(case)).outputs["out"]
    session.expect(bool((again.outputs["out"] == expected).all()), "out", "the negated second half does not negate the result")


def _constant(case: ActCase, session: Session) -> None:
    """One element's inputs everywhere: its bits everywhere, tails included, and those of the first call."""
    gate, up = _halves(session)
    place = case.seed % gate.numel()
    alike = _with(session, *(half.flatten()[place].expand(half.shape) for half in (gate, up)))
    again = session.run_moved(_plain(case), alike)
    expected = session.first.outputs["out"].flatten()[place].repeat(gate.numel()).view(gate.shape)
    session.expect_moved("out", again.outputs["out"], expected, "one input everywhere")


def _reflected(case: ActCase, session: Session) -> None:
    """f(z) - f(-z) = z, for each of the activations; where one of them is tiny the float64 of the other does not hold it."""
    gate, up = _halves(session)
    there = session.run(_plain(case), _with(session, gate, torch.ones_like(up)))
    back = session.run(_plain(case), _with(session, -gate, torch.ones_like(up)))
    got = there.outputs["out"].double() - back.outputs["out"].double()
    tolerance = there.bound_of("out") + back.bound_of("out") + 2.0**-51 * gate.double().abs()
    session.expect_close("out", got, gate, tolerance, "f(x) - f(-x) against x")


def _rows(case: ActCase, session: Session) -> None:
    given, count, d = session.inputs(), prod(case.outer), case.width
    cut, first = case.seed % (count + 1), session.first.outputs["out"].reshape(count, d)
    flat = given["x"].reshape(count, 2 * d)
    for part in (slice(0, cut), slice(cut, None)):
        again = session.run_moved(_plain(case), given | {"x": flat[part]})
        session.expect_moved("out", again.outputs["out"], first[part], "some of the rows")


def _apart(case: ActCase, session: Session) -> None:
    given, count, d = session.inputs(), prod(case.outer), case.width
    order = permutation(case.seed, "rows", count)
    moved = given | {"x": given["x"].reshape(count, 2 * d)[order]}
    again = session.run_moved(replace(case, layout={"x": "padded"}), moved)
    expected = session.first.outputs["out"].reshape(count, d)[order]
    session.expect_moved("out", again.outputs["out"], expected, "rows permuted, and apart in memory")


def _spoiled(case: ActCase, session: Session) -> None:
    """A NaN or an infinity in either half is in its own result, and in no other; the other half has a number beside it. So is the
    infinity that a product of two large numbers is rounded to."""
    given, first, d = session.inputs(), session.first_as(_plain(case)).outputs["out"], case.width
    place = case.seed % first.numel()
    reached = torch.zeros(first.numel(), dtype=torch.bool)
    reached[place] = True
    reached = reached.view(first.shape)
    sign, large = 1.0 if case.seed % 2 else -1.0, torch.finfo(first.dtype).max / 2
    for half, (value, beside) in product((0, d), ((torch.nan, 0.5), (torch.inf, 0.5), (large, large))):
        wrong, at = given["x"].clone(), place // d * 2 * d + place % d
        wrong.view(-1)[at], wrong.view(-1)[at + d] = (value, sign * beside) if half == 0 else (beside, sign * value)
        out = session.run(_plain(case), given | {"x": wrong}, judged=False).outputs["out"]
        own = out[reached].isnan() if isnan(value) else out[reached] == sign * torch.inf
        session.expect(bool(own.all()), "out", f"{value} did not reach its own result")
        session.expect_same("out", out[~reached], first[~reached], f"{value} reached another result")


def _some(case: ActCase) -> bool:
    return prod(case.outer) * case.width > 0


RELATIONS = {
    "scale": Relation(_scaled, "the second half times 2^m scales the result, bit for bit"),
    "odd": Relation(_odd, "the second half negated negates the result"),
    "constant": Relation(_constant, "equal elements give equal bits wherever they stand", _some),
    "reflected": Relation(_reflected, "f(x) - f(-x) = x"),
    "rows": Relation(_rows, "a batch equals its parts, bit for bit"),
    "apart": Relation(_apart, "rows may be permuted and lie apart, bit for bit"),
    "spoiled": Relation(_spoiled, "a NaN or an infinity reaches its own result and nothing else", _some),
}
