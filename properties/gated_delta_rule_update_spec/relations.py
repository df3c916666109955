"""gated_delta_rule_update_spec: what holds between calls."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.gated_delta_rule_update_spec.cases import DeltaSpecCase

TOKENS = ("q", "k", "v", "a", "b")


def _call(
    case: DeltaSpecCase, session: Session, given: Inputs, tokens: dict[int, list[int]], slots: dict[int, list[int]],
    accepted: dict[int, int],
) -> JudgedCall:
    """A call of some requests: which tokens of the first call they have, which slots, and how many were accepted."""
    rows = [t for some in tokens.values() for t in some]
    lengths = torch.tensor([0, *(len(some) for some in tokens.values())])
    width = max((len(some) for some in slots.values()), default=1)
    padded = [slots[r] + [-1] * (width - len(slots[r])) for r in tokens]
    other = given | {name: given[name][rows] for name in TOKENS} | {
        "query_start_loc": lengths.cumsum(0),
        "state_indices": torch.tensor(padded, dtype=torch.int64).view(-1, width),
        "num_accepted_tokens": torch.tensor([accepted[r] for r in tokens], dtype=torch.int64),
        "pad_slot": None,
    }
    return session.run(replace(case, layout={}), other, judged=False)


def _plan(case: DeltaSpecCase, given: Inputs) -> tuple[dict[int, list[int]], dict[int, list[int]], dict[int, int]]:
    tokens = {r: list(range(case.starts[r], case.starts[r + 1])) for r in case.live}
    slots = {r: [int(s) for s in given["state_indices"][r]] for r in case.live}
    return tokens, slots, {r: case.accepted[r] for r in case.live}


def _compare(session: Session, got: Tensor, rows: list[int], says: str) -> None:
    """Outputs of these tokens of the first call, within twice its bound."""
    session.expect_close("out", got, session.first.outputs["out"][rows], 2 * session.first.bound_of("out")[rows], says)


def _compare_states(session: Session, got: Tensor, slots: list[int], says: str) -> None:
    expected, limit = session.first.outputs["state"][slots], 2 * session.first.bound_of("state")[slots]
    session.expect_close("state", got, expected, limit, says)


def _one_by_one(case: DeltaSpecCase, session: Session) -> None:
    """Each token in a call of its own, from the slot where the one before has left the state, and to its own slot."""
    given = session.inputs()
    tokens, slots, accepted = _plan(case, given)
    for i in range(max(map(len, tokens.values()), default=0)):
        some = {r: rows[i : i + 1] for r, rows in tokens.items() if i < len(rows)}
        before = {r: slots[r][accepted[r] - 1] if i == 0 else slots[r][i - 1] for r in some}
        again = _call(case, session, given, some, {r: [slots[r][i], before[r]] for r in some}, dict.fromkeys(some, 2))
        given = given | {"state": again.outputs["state"]}
        _compare(session, again.outputs["out"], [rows[0] for rows in some.values()], f"token {i} in a call of its own")
        here = [slots[r][i] for r in some]
        _compare_states(session, again.outputs["state"][here], here, f"token {i} in a call of its own")


def _fewer(case: DeltaSpecCase, session: Session) -> None:
    """Without the last drafts of each request what the others leave stays the same, bit for bit of our own kernels."""
    given = session.inputs()
    tokens, slots, accepted = _plan(case, given)
    kept = {r: rows[: 1 + (case.seed + r) % len(rows)] for r, rows in tokens.items()}
    again = _call(case, session, given, kept, slots, accepted)
    rows = [t for some in kept.values() for t in some]
    here = [slots[r][i] for r, some in kept.items() for i in range(len(some))]
    if session.subject.foreign:
        _compare(session, again.outputs["out"], rows, "without the last drafts")
        _compare_states(session, again.outputs["state"][here], here, "without the last drafts")
        return
    session.expect_same("out", again.outputs["out"], session.first.outputs["out"][rows], "without the last drafts")
    got, expected = again.outputs["state"][here], session.first.outputs["state"][here]
    session.expect_same("state", got, expected, "without the last drafts")


def _permuted(case: DeltaSpecCase, session: Session) -> None:
    given = session.inputs()
    tokens, slots, accepted = _plan(case, given)
    order = [case.live[i] for i in permutation(case.seed, "order", len(case.live)).tolist()]
    again = _call(case, session, given, {r: tokens[r] for r in order}, slots, accepted)
    rows = [t for r in order for t in tokens[r]]
    _compare(session, again.outputs["out"], rows, "requests in another order")
    here = [slots[r][i] for r in order for i in range(len(tokens[r]))]
    _compare_states(session, again.outputs["state"][here], here, "requests in another order")


def _turned(case: DeltaSpecCase, session: Session) -> None:
    """The transposed states under the other tag."""
    given = session.inputs()
    other = given | {
        "state": given["state"].transpose(2, 3).contiguous(), "state_layout": "vk" if case.state_layout == "kv" else "kv",
    }
    again = session.run(replace(case, layout={}, state_layout=other["state_layout"]), other, judged=False)
    rows = [t for r in case.live for t in range(case.starts[r], case.starts[r + 1])]
    _compare(session, again.outputs["out"][rows], rows, "transposed states")
    here = [int(given["state_indices"][r, i]) for r in case.live for i in range(case.lengths[r])]
    _compare_states(session, again.outputs["state"].transpose(2, 3)[here], here, "transposed states")


def _any_live(case: DeltaSpecCase) -> bool:
    return bool(case.live)


RELATIONS = {
    "steps": Relation(_one_by_one, "one call with n tokens equals n calls with one, but for a rounded state",
                      lambda case: bool(case.live) and case.state_dtype == "float32"),
    "fewer": Relation(_fewer, "drafts that come later never influence what those before them leave, bit for bit", _any_live),
    "permute": Relation(_permuted, "permuting the requests permutes the results", _any_live),
    "turned": Relation(_turned, "kv = vk on the transposed states", _any_live),
}
