"""causal_conv1d_update_spec: what holds between calls."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.causal_conv1d.relations import called_with_any_bits
from properties.causal_conv1d_update_spec.cases import ConvSpecCase, numbers


def _call(case: ConvSpecCase, session: Session, given: Inputs, parts: dict[int, Tensor], accepted: dict[int, int]) -> JudgedCall:
    """A call of some live requests with these tokens [n, dim], on the slots that they have."""
    rows = list(parts)
    lengths = torch.tensor([0, *(len(parts[b]) for b in rows)])
    other = given | {
        "x": torch.cat([given["x"][:0], *parts.values()]),
        "query_start_loc": lengths.cumsum(0),
        "cache_indices": given["cache_indices"][rows].long(),
        "num_accepted_tokens": torch.tensor([accepted[b] for b in rows], dtype=torch.int64),
        "pad_slot": None,
    }
    return session.run(replace(case, layout={}), other, judged=False)


def _parts(case: ConvSpecCase, whole: Tensor) -> dict[int, Tensor]:
    return {b: whole[case.starts[b] : case.starts[b + 1]] for b in case.live}


def _accepted(case: ConvSpecCase) -> dict[int, int]:
    return {b: case.accepted[b] for b in case.live}


def _compare(session: Session, case: ConvSpecCase, got: dict[int, Tensor], says: str) -> None:
    """Outputs of each request, as far as `got` has them, within twice the bound of the first call."""
    expected = _parts(case, session.first.outputs["out"])
    limits = _parts(case, 2 * session.first.bound_of("out"))
    for b, value in got.items():
        session.expect_close("out", value, expected[b][: len(value)], limits[b][: len(value)], f"{says}, request {b}")


def _split(call: JudgedCall, parts: dict[int, Tensor]) -> dict[int, Tensor]:
    sizes = [len(part) for part in parts.values()]
    return dict(zip(parts, call.outputs["out"].split(sizes)))


def _columns(call: JudgedCall, given: Inputs, b: int, first: int, last: int) -> Tensor:
    states: Tensor = call.outputs["conv_states"]
    return states[int(given["cache_indices"][b]), :, first:last]


def _one_by_one(case: ConvSpecCase, session: Session) -> None:
    """Each token in a call of its own, the first one from the same history: the last columns are those of the whole."""
    given = session.inputs()
    parts, accepted = _parts(case, given["x"]), _accepted(case)
    found: dict[int, list[Tensor]] = {b: [] for b in parts}
    last: dict[int, Tensor] = {}
    for i in range(max(map(len, parts.values()), default=0)):
        some = {b: part[i : i + 1] for b, part in parts.items() if i < len(part)}
        again = _call(case, session, given, some, accepted if i == 0 else dict.fromkeys(some, 1))
        given = given | {"conv_states": again.outputs["conv_states"]}
        for b, out in _split(again, some).items():
            found[b].append(out)
            last[b] = _columns(again, given, b, 0, case.width - 1)
    _compare(session, case, {b: torch.cat(outs) for b, outs in found.items()}, "token by token")
    for b, columns in last.items():
        expected = _columns(session.first, given, b, len(parts[b]) - 1, len(parts[b]) + case.width - 2)
        session.expect_same("conv_states", columns, expected, f"token by token, request {b}")


def _then(case: ConvSpecCase, session: Session) -> None:
    """Some of the drafts are accepted, and more follow: as if only those had ever come."""
    given = session.inputs()
    parts = _parts(case, given["x"])
    taken = {b: 1 + (case.seed + b) % len(part) for b, part in parts.items()}
    only = {b: part[: taken[b]] for b, part in parts.items()}
    next_parts = {b: numbers(case, f"next {b}", (1 + b % 2 if len(parts[b]) > 1 else 1, case.dim)) for b in parts}
    short = _call(case, session, given, only, _accepted(case))
    _compare(session, case, _split(short, only), "without what is not accepted")
    after = [
        _call(case, session, given | {"conv_states": call.outputs["conv_states"].clone()}, next_parts, taken)
        for call in (session.first, short)
    ]
    session.expect_same("out", after[0].outputs["out"], after[1].outputs["out"], "after drafts that were not accepted")


def _alone(case: ConvSpecCase, session: Session) -> None:
    """One request alone, whatever the layouts."""
    given = session.inputs()
    b = case.live[case.seed % len(case.live)]
    part = {b: _parts(case, given["x"])[b]}
    again = _call(case, session, given, part, _accepted(case))
    _compare(session, case, _split(again, part), "alone")
    last = case.width - 2 + len(part[b])
    got, expected = _columns(again, given, b, 0, last), _columns(session.first, given, b, 0, last)
    session.expect_same("conv_states", got, expected, "alone")


def _permuted(case: ConvSpecCase, session: Session) -> None:
    given = session.inputs()
    parts = _parts(case, given["x"])
    order = [case.live[i] for i in permutation(case.seed, "order", len(case.live)).tolist()]
    other = {b: parts[b] for b in order}
    again = _call(case, session, given, other, _accepted(case))
    _compare(session, case, _split(again, other), "requests in another order")


def _any_bits(case: ConvSpecCase, session: Session) -> None:
    given, again = called_with_any_bits(case, session)
    for b, part in _parts(case, given["x"]).items():
        before = given["conv_states"][int(given["cache_indices"][b])]
        history = before[:, case.accepted[b] : case.accepted[b] + case.width - 2]
        got = _columns(again, given, b, 0, case.width - 2 + len(part))
        session.expect_same("conv_states", got, torch.cat([history, part.t()], dim=1), f"columns of any bits, request {b}")


def _any_live(case: ConvSpecCase) -> bool:
    return bool(case.live)


RELATIONS = {
    "steps": Relation(_one_by_one, "one call with n tokens equals n calls with one", _any_live),
    "accept": Relation(_then, "drafts that are not accepted leave no trace", _any_live),
    "alone": Relation(_alone, "a request gives the same alone and in company, in any layout", _any_live),
    "any_bits": Relation(_any_bits, "a state holds tokens bit for bit, whatever the bits", _any_live),
    "permute": Relation(_permuted, "permuting the requests permutes the results", _any_live),
}
