"""rms_norm: what holds between calls."""

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from kernelpair.call.layout import FUSED
from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Outputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.rms_norm.cases import TINY, WRITABLE, NormCase
from properties.shared.attention_bound import SMALLEST_NORMAL

LARGE = 1e3  # of x
LIKE_X = ("x", "residual", "gate")
BY_COLUMN = (*LIKE_X, "weight")


def _each(given: Inputs, names: tuple[str, ...], change: object) -> Inputs:
    """The inputs with some tensors changed, as far as they are there."""
    return given | {name: change(given[name]) for name in names if given[name] is not None}  # type: ignore[operator]


def _plain(case: NormCase, **fields: object) -> NormCase:
    """The case without layouts, whose exact mode its relations leave."""
    return replace(case, layout={}, exact=-1, **fields)  # type: ignore[arg-type]


def _dense(case: NormCase, session: Session) -> Outputs:
    """What the first call gives in a layout without strides, for others that have none."""
    return session.run(_plain(case), session.inputs(), judged=False).outputs if case.layout else session.first.outputs


def _same(session: Session, again: JudgedCall, chosen: Tensor | slice, shape: tuple[int, int], says: str) -> None:
    """Rows of the first call, chosen in their flat order, have the bits of all rows of the other one."""
    for name, value in session.first.outputs.items():
        session.expect_moved(name, again.outputs[name], value.reshape(shape)[chosen], says)


def _in_place(case: NormCase, session: Session) -> None:
    """With x's strides as they are, where nobody else's memory lies between its rows. Another's form in place is drawn alone."""
    if session.subject.foreign:
        return
    kept = {name: kind for name, kind in case.layout.items() if kind in WRITABLE and kind != FUSED}
    again = session.run(replace(case, in_place=True, layout=kept), session.inputs() | {"in_place": True})
    for name, value in (("x", "out"), ("residual", "residual")):
        if value in session.first.outputs:
            session.expect_same(name, again.outputs[name], session.first.outputs[value], "the result in x")


def _rows(case: NormCase, session: Session) -> None:
    count, D = prod(case.outer), case.columns
    cut = case.seed % (count + 1)
    flat = _each(session.inputs(), LIKE_X, lambda value: value.reshape(count, D))
    for part in (slice(0, cut), slice(cut, None)):
        again = session.run_moved(_plain(case), _each(flat, LIKE_X, lambda value: value[part]))
        _same(session, again, part, (count, D), "some of the rows")


def _apart(case: NormCase, session: Session) -> None:
    """Rows in another order, each a few elements behind the one before."""
    count, D, given = prod(case.outer), case.columns, session.inputs()
    order = permutation(case.seed, "rows", count)
    layout = {name: "padded" for name in LIKE_X if given[name] is not None}
    moved = _each(given, LIKE_X, lambda value: value.reshape(count, D)[order])
    again = session.run_moved(replace(case, layout=layout, exact=-1), moved)
    _same(session, again, order, (count, D), "rows permuted, and apart in memory")


def _columns(case: NormCase, session: Session) -> None:
    """Columns permuted within each group: another order of the sum."""
    size = case.width
    order = torch.cat([size * group + permutation(case.seed, f"columns{group}", size) for group in range(max(case.groups, 1))])
    moved = _each(session.inputs(), BY_COLUMN, lambda value: value[..., order])
    again = session.run(_plain(case), moved)
    first = session.first
    got, expected = again.outputs["out"].double(), first.outputs["out"][..., order].double()
    tolerance = again.bound_of("out") + first.bound_of("out")[..., order]
    session.expect_close("out", got, expected, tolerance, "columns permuted")


def _scaled(case: NormCase, session: Session) -> None:
    """Large numbers become smaller, for float16 ends at 65,504."""
    given, power = session.inputs(), (1 + case.seed % 2) * (-1 if case.size > LARGE else 1)
    other = _each(given, ("x", "residual"), lambda value: value * 2**power) | {"eps": given["eps"] * 4**power}
    again = session.run(replace(case, exact=-1), other, judged=False)
    session.expect_same("out", again.outputs["out"], session.first.outputs["out"], f"x times 2^{power}, eps times 4^{power}")


def _zero_residual(case: NormCase, session: Session) -> None:
    given = session.inputs()
    again = session.run(_plain(case), given | {"residual": torch.zeros_like(given["x"])})
    tolerance = again.bound_of("out") + session.first.bound_of("out")
    session.expect_close("out", again.outputs["out"].double(), session.first.outputs["out"], tolerance, "a residual of zeros")
    lost = (given["x"].abs() < SMALLEST_NORMAL) & (case.dtype == "bfloat16")  # which may be flushed
    session.expect(bool(((again.outputs["residual"] == given["x"]) | lost).all()), "residual", "x + 0 is not x")


def _gemma(case: NormCase, session: Session) -> None:
    given = session.inputs()
    again = session.run(_plain(case), given | {"weight": given["weight"].float() + 1, "gemma": False})
    tolerance = again.bound_of("out") + session.first.bound_of("out")
    session.expect_close(
        "out", again.outputs["out"].double(), session.first.outputs["out"], tolerance, "1 + weight as the weight"
    )


def _groups(case: NormCase, session: Session) -> None:
    """One group in a call of its own."""
    group = case.seed % case.groups
    part = slice(group * case.width, (group + 1) * case.width)
    some = _each(session.inputs(), BY_COLUMN, lambda value: value[..., part].contiguous()) | {"group_size": None}
    again = session.run(_plain(case), some)
    first = session.first
    tolerance = again.bound_of("out") + first.bound_of("out")[..., part]
    session.expect_close("out", again.outputs["out"].double(), first.outputs["out"][..., part], tolerance, "a group alone")


def _gate_of_60(case: NormCase, session: Session) -> None:
    given = session.inputs()
    again = session.run(_plain(case), given | {"gate": torch.full_like(given["x"], 60.0)})
    tolerance = again.bound_of("out") + 60 * session.first.bound_of("out")
    expected = 60 * session.first.outputs["out"].double()
    session.expect_close("out", again.outputs["out"].double(), expected, tolerance, "a gate of 60")


def _spoiled(case: NormCase, session: Session) -> None:
    """A NaN in x or residual is in all of its group and nowhere else; one in the gate stays where it is, one in the weight is in
    its column and nowhere else."""
    given, D, first = session.inputs(), case.columns, _dense(case, session)["out"]
    place = case.seed % first.numel()
    row, column = place // D, place % D
    group = column // case.width * case.width
    spoilt = []
    for name in LIKE_X:
        if given[name] is None:
            continue
        wrong, reached = given[name].clone(), torch.zeros(prod(case.outer), D, dtype=torch.bool)
        wrong.view(-1)[place] = torch.nan
        reached[row, column if name == "gate" else slice(group, group + case.width)] = True
        spoilt.append((given | {name: wrong}, reached.view(first.shape), f"a NaN in {name}"))
    if given["weight"] is not None:
        weight = given["weight"].clone()
        weight[column] = torch.nan
        spoilt.append((given | {"weight": weight}, (torch.arange(D) == column).expand(first.shape), "a NaN in the weight"))
    for other, where, says in spoilt:
        out = session.run(_plain(case), other, judged=False).outputs["out"]
        session.expect(bool(out[where].isnan().all()), "out", f"{says} did not reach what it belongs to")
        session.expect_same("out", out[~where], first[~where], f"{says} reached more than it belongs to")


def _beyond(case: NormCase, session: Session) -> None:
    """A sum of x and residual beyond the dtype is an infinity in residual, and reaches its group of the result alone."""
    given, D, first, case = session.inputs(), case.columns, _dense(case, session), _plain(case)
    if case.form != "residual":
        case, given = replace(case, form="residual"), given | {"gate": None, "residual": torch.zeros_like(given["x"])}
        first = session.run(case, given, judged=False).outputs
    place, sign = case.seed % first["out"].numel(), 1.0 if case.seed % 2 else -1.0
    row, group = place // D, place % D // case.width * case.width
    x, residual = given["x"].clone(), given["residual"].clone()
    x.view(-1)[place] = residual.view(-1)[place] = sign * torch.finfo(x.dtype).max * 0.625
    again = session.run(case, given | {"x": x, "residual": residual}, judged=False).outputs
    stored = first["residual"].clone()
    stored.view(-1)[place] = sign * torch.inf
    session.expect_same("residual", again["residual"], stored, "a sum beyond the dtype")
    reached = torch.zeros(prod(case.outer), D, dtype=torch.bool)
    reached[row, group : group + case.width] = True
    others = ~reached.view(stored.shape)
    session.expect_same("out", again["out"][others], first["out"][others], "a sum beyond the dtype reached another group")


def _some(case: NormCase) -> bool:
    return prod(case.outer) * case.columns > 0


def _returned(case: NormCase) -> bool:
    return not case.in_place


def _some_returned(case: NormCase) -> bool:
    return _returned(case) and _some(case)


RELATIONS = {
    "rows": Relation(_rows, "a batch equals its parts, bit for bit"),
    "apart": Relation(_apart, "rows may be permuted and lie apart, bit for bit"),
    "in_place": Relation(_in_place, "a result in place has the bits of one that is returned", _returned),
    "columns": Relation(_columns, "permuting the columns of a group permutes its results", _returned),
    "scale": Relation(
        _scaled, "x times 2^m with eps times 4^m changes no bit",
        lambda case: _returned(case) and (case.eps > TINY or case.exact >= 0),
    ),
    "zero_residual": Relation(
        _zero_residual, "a residual of zeros is none", lambda case: case.form == "plain" and _some_returned(case)
    ),
    "gemma": Relation(_gemma, "Gemma's form is a weight of 1 + w in float32", lambda case: case.gemma and _some_returned(case)),
    "groups": Relation(_groups, "a group is a call of its own", lambda case: case.groups > 1 and _some_returned(case)),
    "gate_of_60": Relation(
        _gate_of_60, "a gate of 60 multiplies by 60", lambda case: case.form == "plain" and _some_returned(case)
    ),
    "beyond": Relation(_beyond, "a sum beyond the dtype is an infinity in residual", _some_returned),
    "spoiled": Relation(_spoiled, "a NaN reaches its group or its column and nothing else", _some_returned),
}  # fmt: skip
