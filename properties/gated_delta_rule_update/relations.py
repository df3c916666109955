"""What must hold of gated_delta_rule_update beyond equality with its reference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.shared.pads import other_dtypes

TOKENS = ("q", "k", "v", "a", "b", "state_indices")
NAN = float("nan")


def _tolerance(session: Session, name: str) -> Tensor:
    """Both sides are within one bound of the truth."""
    found = session.first.bound.get(name)
    return 2 * found if isinstance(found, Tensor) else torch.zeros_like(session.first.truth[name])


def _live(given: Inputs) -> list[int]:
    pad = given["pad_slot"]
    return [row for row, slot in enumerate(given["state_indices"].tolist()) if pad is None or slot != pad]


def _same(
    session: Session, again: JudgedCall, rows: Sequence[int], says: str, *, turned: bool = False, slots: Tensor | None = None
) -> None:
    """Row i of another call is row rows[i] of the first; its state, if `turned`, lies transposed; slots[s] is where s went."""
    given = session.inputs()
    if not len(rows):
        return
    out, state = session.first.outputs["out"], session.first.outputs["state"]
    session.expect_close("out", again.outputs["out"], out[list(rows)], _tolerance(session, "out")[list(rows)], says)
    live = [row for row in rows if row in _live(given)]
    before = given["state_indices"][live].long()
    after = before if slots is None else slots[before]
    got = again.outputs["state"][after]
    got = got.transpose(2, 3) if turned else got
    session.expect_close("state", got, state[before], _tolerance(session, "state")[before], says)


def _permuted(case: Any, session: Session) -> None:
    given = session.inputs()
    rows = permutation(case.seed, "order", case.requests)
    again = session.run(replace(case, layout={}), given | {name: given[name][rows] for name in TOKENS}, judged=False)
    _same(session, again, rows.tolist(), "requests in another order")


def _alone(case: Any, session: Session) -> None:
    given = session.inputs()
    if case.requests:
        row = case.seed % case.requests
        part = {name: given[name][row : row + 1] for name in TOKENS}
        again = session.run(replace(case, layout={}), given | part, judged=False)
        _same(session, again, [row], "a request alone")


def _renamed(case: Any, session: Session) -> None:
    given = session.inputs()
    to = permutation(case.seed, "rename", len(given["state"]))
    moved = torch.empty_like(given["state"])
    moved[to] = given["state"]
    indices = torch.full((case.requests,), -7)
    live = _live(given)
    indices[live] = to[given["state_indices"][live].long()]
    pad = None if given["pad_slot"] is None else -7
    again = session.run(
        replace(case, layout={}), given | {"state": moved, "state_indices": indices, "pad_slot": pad}, judged=False
    )
    _same(session, again, range(case.requests), "slots renamed", slots=to)


def _other_layout(case: Any, session: Session) -> None:
    layout = {} if case.layout else {"state": "sliced", "k": "padded", "a": "strided", "b": "turned"}
    given = session.inputs()
    int32 = other_dtypes(case, ("state_indices",), given["pad_slot"])
    again = session.run(replace(case, layout=layout, int32=int32), given, judged=False)
    _same(session, again, range(case.requests), "other strides and the other index dtype")


def _turned(case: Any, session: Session) -> None:
    given = session.inputs()
    other = "vk" if case.state_layout == "kv" else "kv"
    turned = given | {"state": given["state"].transpose(2, 3).contiguous(), "state_layout": other}
    again = session.run(replace(case, layout={}, state_layout=other), turned, judged=False)
    _same(session, again, range(case.requests), "the state transposed, under the other tag", turned=True)


def _ungrouped(case: Any, session: Session) -> None:
    """Repeating q and k for each value head makes groups of one."""
    given = session.inputs()
    alone = given | {name: given[name].repeat_interleave(case.group, dim=1) for name in ("q", "k")}
    again = session.run(replace(case, layout={}, group=1, key_heads=case.key_heads * case.group), alone, judged=False)
    _same(session, again, range(case.requests), "q and k repeated for each value head")


def _only_decays(case: Any, session: Session) -> None:
    """With b = -100 nothing is written: S becomes gamma S."""
    given = session.inputs()
    again = session.run(replace(case, exact=False, layout={}), given | {"b": torch.full_like(given["b"], -100.0)})
    live = _live(given)
    slots = given["state_indices"][live].long()
    x = (given["a"].double() + given["dt_bias"].double())[live]
    z = case.softplus_beta * x
    softplus = torch.where(z > case.softplus_threshold, x, torch.nn.functional.softplus(z, threshold=1e9) / case.softplus_beta)
    gamma = torch.exp(-given["A_log"].double().exp() * softplus)[..., None, None]
    expected, tolerance = gamma * given["state"][slots].double(), again.bound["state"]
    assert isinstance(tolerance, Tensor)
    session.expect_close("state", again.outputs["state"][slots], expected, tolerance[slots], "no write: only the decay")


def _doubled(case: Any, session: Session) -> None:
    """Twice v and S give twice o and S, bit for bit: nothing under- or overflows here."""
    given = session.inputs()
    mild = given | {"A_log": torch.full_like(given["A_log"], -3.0)}
    once = session.run(replace(case, layout={}), mild, judged=False)
    twice = session.run(replace(case, layout={}), mild | {name: given[name] * 2 for name in ("v", "state")}, judged=False)
    slots = given["state_indices"][_live(given)].long()
    session.expect_same("out", twice.outputs["out"], once.outputs["out"] * 2, "twice v and S")
    session.expect_same("state", twice.outputs["state"][slots], once.outputs["state"][slots] * 2, "twice v and S")


def _isolated(case: Any, session: Session) -> None:
    """One request's tokens and state become NaN: the others do not notice."""
    given = session.inputs()
    live = _live(given)
    if len(live) < 2 or "expanded" in case.layout.values():
        return
    victim = live[case.seed % len(live)]
    for name in ("q", "k", "v", "a", "b"):
        given[name][victim] = NAN
    given["state"][int(given["state_indices"][victim])] = NAN
    again = session.run(replace(case, layout={}), given, judged=False)
    rows = [row for row in range(case.requests) if row != victim]
    again.outputs["out"] = again.outputs["out"][rows]
    _same(session, again, rows, "a neighbour of NaN")


RELATIONS = {
    "permute": Relation(_permuted, "permuting the requests permutes the results"),
    "alone": Relation(_alone, "a request gives the same alone and in company"),
    "rename": Relation(_renamed, "which slot is whose does not matter"),
    "layout": Relation(_other_layout, "strides and index dtype do not matter"),
    "transpose": Relation(_turned, "kv equals vk on the transposed state"),
    "ungroup": Relation(_ungrouped, "q and k repeated for each value head give the same"),
    "decay": Relation(_only_decays, "without a write the state only decays"),
    "double": Relation(_doubled, "twice v and S give twice o and S", lambda case: case.dtype != "float16"),
    "isolation": Relation(_isolated, "NaN of one request stays there"),
}
