"""gdn_gating: what holds between calls."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Relation
from kernelpair.trial.session import Session
from properties.gdn_gating.cases import NAMES, VECTORS, GatingCase


def _constant(case: GatingCase, session: Session) -> None:
    """One element's inputs everywhere: its bits everywhere, and those of the first call."""
    given = session.inputs()
    if not given["a"].numel():
        return
    row, head = case.seed % case.rows, case.seed % case.heads
    at = {name: given[name][row, head] for name in ("a", "b")} | {name: given[name][head] for name in VECTORS}
    flat = given | {name: torch.full_like(given[name], value.item()) for name, value in at.items()}
    again = session.run_moved(replace(case, layout={}), flat)
    for name in NAMES:
        expected = session.first.outputs[name][row, head].reshape(1, 1).repeat(case.rows, case.heads)
        session.expect_moved(name, again.outputs[name], expected, "one input everywhere")


def _permuted(case: GatingCase, session: Session) -> None:
    given = session.inputs()
    rows, heads = permutation(case.seed, "rows", case.rows), permutation(case.seed, "heads", case.heads)
    other = given | {name: given[name][rows][:, heads] for name in ("a", "b")}
    other |= {name: given[name][heads] for name in VECTORS}
    again = session.run_moved(replace(case, layout={}), other)
    for name in NAMES:
        says, expected = "rows and heads permuted", session.first.outputs[name][rows][:, heads]
        session.expect_moved(name, again.outputs[name], expected, says)


def _dense(case: GatingCase, session: Session) -> None:
    layout = {} if case.layout else {"a": "turned", "b": "strided", "A_log": "strided", "dt_bias": "strided"}
    again = session.run_moved(replace(case, layout=layout), session.inputs())
    for name in NAMES:
        session.expect_moved(name, again.outputs[name], session.first.outputs[name], "another layout")


def _halves(case: GatingCase, session: Session) -> None:
    given = session.inputs()
    cut = case.seed % (case.rows + 1)
    for part in (slice(0, cut), slice(cut, None)):
        other = given | {name: given[name][part] for name in ("a", "b")}
        again = session.run_moved(replace(case, layout={}), other)
        for name in NAMES:
            session.expect_moved(name, again.outputs[name], session.first.outputs[name][part], "some of the rows")


def _monotone(case: GatingCase, session: Session) -> None:
    """g falls as a rises, and is never positive, up to twice its bound; a low threshold's jump is left out."""
    given = session.inputs()
    ordered = given["a"].double().sort(dim=0).values.to(given["a"].dtype)
    again = session.run(replace(case, layout={}, softplus_threshold=20.0), given | {"a": ordered, "softplus_threshold": 20.0})
    g, tolerance = again.outputs["g"].double(), again.bound["g"]
    assert isinstance(tolerance, Tensor)
    session.expect(bool((g <= 0).all()), "g", "g is positive")
    session.expect(bool((g[1:] - g[:-1] <= tolerance[1:] + tolerance[:-1]).all()), "g", "g rises with a")


def _landmarks(case: GatingCase, session: Session) -> None:
    """Values that are exact: sigmoid at 0 and far out; g = -x past the threshold where A_log = 0."""
    given = session.inputs()
    shape = given["a"].shape
    for b, beta in ((0.0, 0.5), (150.0, 1.0), (-150.0, 0.0)):
        past = given | {
            "a": torch.full(shape, 64.0).to(given["a"].dtype),
            "b": torch.full(shape, b).to(given["b"].dtype),
            "A_log": torch.zeros_like(given["A_log"]),
            "dt_bias": torch.ones_like(given["dt_bias"]),
            "softplus_threshold": min(given["softplus_threshold"], 20.0),
        }
        again = session.run(replace(case, layout={}), past, judged=False)
        session.expect_same("beta", again.outputs["beta"] + 0, torch.full(shape, beta).to(given["b"].dtype), f"sigmoid({b:g})")
        session.expect_same("g", again.outputs["g"], torch.full(shape, -65.0), "past the threshold")


RELATIONS = {
    "constant": Relation(_constant, "equal inputs give equal bits at every row and head"),
    "permute": Relation(_permuted, "permuting rows and heads permutes the bits"),
    "layout": Relation(_dense, "strides do not matter, bit for bit"),
    "halves": Relation(_halves, "a batch equals its parts, bit for bit"),
    "monotone": Relation(_monotone, "g <= 0, and it falls as a rises"),
    "landmarks": Relation(_landmarks, "sigmoid(0) = 1/2, it saturates, and g = -x past the threshold"),
}
