"""topk_gating: what holds between calls."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation, small_integers
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.shared.attention_bound import accumulation_error
from properties.topk_gating.cases import NAMES, TopkCase
from properties.topk_gating.selection import ROUND, judged_rows, scored


def _tokens(case: TopkCase, session: Session) -> tuple[Inputs, Tensor]:
    """The rows that are tokens and finite, as a call of their own, and which these are."""
    given = session.inputs()
    wide = {name: value.double() if isinstance(value, Tensor) else value for name, value in given.items()}
    rows = judged_rows(wide)
    return given | {"logits": given["logits"][rows], "num_valid": None}, rows


def _bare(case: TopkCase, tokens: int, **fields: Any) -> TopkCase:
    return replace(case, layout={}, pads=None, broken=False, tokens=tokens, **fields)


def _same(session: Session, again: JudgedCall, rows: Tensor | slice, says: str) -> None:
    for name in NAMES:
        session.expect_moved(name, again.outputs[name], session.first.outputs[name][rows], says)


def _halves(case: TopkCase, session: Session) -> None:
    given, rows = _tokens(case, session)
    cut = case.seed % (len(given["logits"]) + 1)
    for part in (slice(0, cut), slice(cut, None)):
        some = given | {"logits": given["logits"][part]}
        again = session.run_moved(_bare(case, len(some["logits"])), some)
        _same(session, again, rows.nonzero()[:, 0][part], "some of the rows")


def _rows_permuted(case: TopkCase, session: Session) -> None:
    given, rows = _tokens(case, session)
    order = permutation(case.seed, "rows", len(given["logits"]))
    again = session.run_moved(_bare(case, len(order)), given | {"logits": given["logits"][order]})
    _same(session, again, rows.nonzero()[:, 0][order], "rows permuted")


def _renumbered(case: TopkCase, session: Session) -> None:
    """Experts change their places within a group, and groups theirs: the same are chosen but for ties and near ties."""
    given, _ = _tokens(case, session)
    size = case.size
    groups = permutation(case.seed, "groups", case.groups)
    inside = torch.cat([permutation(case.seed, f"group {g}", size) + size * int(groups[g]) for g in range(case.groups)])
    other = given | {"logits": given["logits"][:, inside]}
    if given["correction_bias"] is not None:
        other |= {"correction_bias": given["correction_bias"][inside]}
    tokens = len(given["logits"])
    first, again = session.run(_bare(case, tokens), given), session.run(_bare(case, tokens), other)
    clear = _clear({name: value.double() if isinstance(value, Tensor) else value for name, value in given.items()})
    ours, theirs = first.outputs["ids"][clear].long(), inside[again.outputs["ids"][clear].long()]
    session.expect(torch.equal(ours, theirs), "ids", "experts in another order: others are chosen")
    at = {name: (first.outputs[name][clear], again.outputs[name][clear]) for name in NAMES}
    tolerance = (first.bound_of("weights") + again.bound_of("weights"))[clear]
    session.expect_close("weights", at["weights"][1], at["weights"][0], tolerance, "experts in another order")


def _clear(given: Inputs) -> Tensor:
    """[R]: rows in which no two choices and no two groups are nearer than their errors."""
    found = scored(given, torch.ones(len(given["logits"]), dtype=torch.bool))
    clear = torch.ones(len(given["logits"]), dtype=torch.bool)
    for values, errors in ((found.choice, found.error), (found.groups, found.group_error)):
        order = values.sort(-1)
        low, high = values - errors, values + errors
        clear &= (low.gather(1, order.indices)[:, 1:] > high.gather(1, order.indices)[:, :-1]).all(-1)
    return clear


def _shifted(case: TopkCase, session: Session) -> None:
    """Logits in steps of 1/16, to which a whole number is added: every difference of two stays exactly what it was."""
    given, _ = _tokens(case, session)
    z = small_integers(case.seed, "steps", given["logits"].shape, torch.float32, 64) / 16
    far = small_integers(case.seed, "far", (len(z), 1), torch.float32, 4)
    dtype, tokens = given["logits"].dtype, len(z)
    first = session.run(_bare(case, tokens), given | {"logits": z.to(dtype)})
    again = session.run(_bare(case, tokens), given | {"logits": (z + far).to(dtype)})
    same = (first.outputs["ids"] == again.outputs["ids"]).all(-1)
    wide = {name: value.double() if isinstance(value, Tensor) else value for name, value in given.items()}
    session.expect(bool((same | ~_clear(wide | {"logits": z.double()})).all()), "ids", "a row plus a constant: others are chosen")
    tolerance = (first.bound_of("weights") + again.bound_of("weights"))[same]
    got, expected = again.outputs["weights"][same], first.outputs["weights"][same]
    session.expect_close("weights", got, expected, tolerance, "a row plus a constant")


def _ungrouped(case: TopkCase, session: Session) -> None:
    """All of the groups stay: as if there were none."""
    given, _ = _tokens(case, session)
    tokens = len(given["logits"])
    whole = given | {"num_expert_group": 1, "topk_group": 1}
    every = given | {"topk_group": case.groups}
    first = session.run_moved(_bare(case, tokens, groups=1, kept=1), whole)
    again = session.run_moved(_bare(case, tokens, kept=case.groups), every)
    for name in NAMES:
        session.expect_moved(name, again.outputs[name], first.outputs[name], "all groups stay")


def _no_bias(case: TopkCase, session: Session) -> None:
    """A bias of 0 in one group is none."""
    given, _ = _tokens(case, session)
    tokens, alone = len(given["logits"]), {"num_expert_group": 1, "topk_group": 1}
    zeros = torch.zeros(case.experts)
    first = session.run(_bare(case, tokens, groups=1, kept=1, bias="none"), given | alone | {"correction_bias": None})
    again = session.run(_bare(case, tokens, groups=1, kept=1, bias="float32"), given | alone | {"correction_bias": zeros})
    same = (first.outputs["ids"] == again.outputs["ids"]).all(-1)
    tolerance = (first.bound_of("weights") + again.bound_of("weights"))[same]
    got, expected = again.outputs["weights"][same], first.outputs["weights"][same]
    session.expect_close("weights", got, expected, tolerance, "a bias of 0")


def _sums(case: TopkCase, session: Session) -> None:
    """Renormalized weights add up to the scale, but for roundings; where every score is 0 they are 0."""
    given, _ = _tokens(case, session)
    again = session.run(_bare(case, len(given["logits"]), renormalize=True), given | {"renormalize": True})
    weights = again.outputs["weights"].double()
    total, size = weights.sum(-1), weights.abs().sum(-1)
    rounded = (accumulation_error(case.topk + 2) + ROUND) * max(abs(case.scaling), 1e-30)
    flushed = again.bound_of("weights").sum(-1) >= abs(case.scaling) / 2  # scores of no more than 2^-124 or so
    good = ((total - case.scaling).abs() <= rounded) | (size == 0) | flushed
    session.expect(bool(good.all()), "weights", "renormalized weights do not add up to the scale")


def _scaled(case: TopkCase, session: Session) -> None:
    given, _ = _tokens(case, session)
    factor, tokens = 2.0 ** (1 + case.seed % 5), len(given["logits"])
    first = session.run(_bare(case, tokens), given, judged=False).outputs
    other = given | {"scaling_factor": case.scaling * factor}
    again = session.run(_bare(case, tokens, scaling=case.scaling * factor), other, judged=False)
    session.expect_same("ids", again.outputs["ids"], first["ids"], "another scale")
    expected = first["weights"] * factor
    near = expected.abs() < 2.0**-120  # what was subnormal before
    got = again.outputs["weights"]
    session.expect_same("weights", got.masked_fill(near, 0.0), expected.masked_fill(near, 0.0), "the scale times a power of 2")


RELATIONS = {
    "halves": Relation(_halves, "rows are independent: a batch equals its parts, bit for bit"),
    "rows": Relation(_rows_permuted, "permuting rows permutes the bits; strides and pads do not matter"),
    "renumber": Relation(_renumbered, "experts and groups in another order: the same are chosen, and weigh the same"),
    "shift": Relation(_shifted, "adding a constant to a row keeps ids and weights", lambda case: case.scoring == "softmax"),
    "groups": Relation(_ungrouped, "if all groups stay they do not matter, bit for bit", lambda case: case.groups > 1),
    "zero_bias": Relation(_no_bias, "a bias of 0 is none"),
    "sum": Relation(_sums, "renormalized weights add up to the scale"),
    "scale": Relation(_scaled, "a scale times a power of 2 scales the weights, bit for bit"),
}
