"""What holds between calls of chunk_gated_delta_rule, beyond equality with the token loop."""

from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.chunk_gated_delta_rule.bound import bound, carried
from properties.chunk_gated_delta_rule.cases import TOKENS, ChunkCase, inputs
from properties.shared.pads import other_dtypes
from reference.gated_delta_rule_update import gated_delta_rule_update

NAMES = ("out", "final_state")
PLAIN: dict[str, Any] = {"layout": {}}  # relations rebuild their arguments densely


def _close(session: Session, name: str, got: Tensor, expected: Tensor, bound: Any, says: str) -> None:
    """Two results of one call's data: each is within one bound of the truth."""
    session.expect_close(name, got, expected, 2 * bound, says)


def _bounds(session: Session) -> Any:
    """Of the first call, by output."""
    return session.first.bound


def _agrees(case: ChunkCase, session: Session, out: Tensor, state: Tensor, says: str) -> None:
    """Outputs and states, in the layout of the first call; of a pool only what was written."""
    first = session.first
    _close(session, "out", out, first.outputs["out"], _bounds(session)["out"], says)
    if case.form == "functional":
        _close(session, "final_state", state, first.outputs["final_state"], _bounds(session)["final_state"], says)
        return
    slots = session.inputs()["state_indices"][list(case.live)].long()
    _close(session, "state", state[slots], first.outputs["state"][slots], _bounds(session)["state"][slots], says)


def _split(case: ChunkCase, session: Session) -> None:
    """One long sequence in two calls. The second one's chunks begin elsewhere, and it starts from what the first has left: so it
    has a bound of its own, and the error of its start comes to it. Our own kernel
    keeps the bound of the whole."""
    given, first = session.inputs(), session.first
    length, start = case.lengths[0], case.before
    cut = start + 1 + case.seed % (length - 1)

    def part(begin: int, end: int, state: Tensor) -> tuple[Inputs, JudgedCall]:
        of_part = {name: given[name][begin:end] for name in TOKENS} | {"cu_seqlens": torch.tensor([0, end - begin])}
        alone = replace(case, lengths=(end - begin,), before=0, after=0, **PLAIN)
        return of_part, session.run(alone, given | of_part | {"initial_state": state}, note="in two parts")

    _, one = part(start, cut, given["initial_state"])
    tokens, two = part(cut, start + length, one.outputs["final_state"])
    moved = dict(zip(NAMES, carried(case, tokens, one.bound_of("final_state"))))
    for name, part_of_whole in (("out", slice(cut, start + length)), ("final_state", slice(None))):
        tolerance = first.bound_of(name)[part_of_whole]
        if session.subject.foreign:
            tolerance = tolerance + two.bound_of(name) + moved[name]
        session.expect_close(name, two.outputs[name], first.outputs[name][part_of_whole], tolerance, "in two parts")
    head = slice(start, cut)
    tolerance = first.bound_of("out")[head] + (one.bound_of("out") if session.subject.foreign else 0.0)
    session.expect_close("out", one.outputs["out"], first.outputs["out"][head], tolerance, "in two parts")


def _as_steps(case: ChunkCase, session: Session) -> None:
    """Token by token through the reference of the decode step, in float64: with a = -g, A_log = 0 and a threshold below
    everything its gate is g itself; b is beta's logit."""
    given = session.inputs()
    q, k, v, g, beta = (given[name].double() for name in TOKENS)
    shape = (len(case.lengths), case.heads, case.K, case.V)
    start = given["initial_state"]
    inner = shape if case.state_layout == "kv" else (*shape[:2], case.V, case.K)
    state = torch.zeros(inner, dtype=torch.float64) if start is None else start.double()
    out = torch.zeros(v.shape, dtype=torch.float64)
    zeros = torch.zeros(case.heads, dtype=torch.float64)
    for n, (begin, end) in enumerate(case.spans):
        for t in range(begin, end):
            out[t] = gated_delta_rule_update(
                zeros, zeros, q[t : t + 1], k[t : t + 1], v[t : t + 1], -g[t : t + 1], torch.logit(beta[t : t + 1]), state,
                torch.tensor([n]), case.state_layout, case.l2norm, case.eps, case.scale, softplus_threshold=-1e30,
            )[0]  # fmt: skip
    first = session.first
    _close(session, "out", first.outputs["out"], out, _bounds(session)["out"], "T decode steps")
    _close(session, "final_state", first.outputs["final_state"], state, _bounds(session)["final_state"], "T decode steps")


def _as_pool(case: ChunkCase, session: Session) -> None:
    given = session.inputs()
    indices = permutation(case.seed, "pool", len(case.lengths) + 2)[: len(case.lengths)]
    initial = given.pop("initial_state")
    shape = session.first.outputs["final_state"].shape
    pool = torch.full((len(case.lengths) + 2, *shape[1:]), float("nan"), dtype=session.first.outputs["final_state"].dtype)
    if initial is not None:
        pool[indices] = initial
    offsets = given.pop("cu_seqlens")
    scalars = {name: given.pop(name) for name in ("state_layout", "use_qk_l2norm", "eps", "scale")}
    flags = torch.full((len(case.lengths),), initial is not None)
    state = {"state": pool, "state_indices": indices, "has_initial_state": flags, "cu_seqlens": offsets}
    as_pool = replace(case, form="pool", flags=True, state="float32" if initial is None else case.state, **PLAIN)
    result = session.run(as_pool, given | state | scalars | {"pad_slot": None}, judged=False)
    first, live = session.first, list(case.live)
    _close(session, "out", result.outputs["out"], first.outputs["out"], _bounds(session)["out"], "on a pool")
    got, expected = result.outputs["state"][indices[live]], first.outputs["final_state"][live]
    _close(session, "final_state", got, expected, _bounds(session)["final_state"][live], "on a pool")


def _only_decay(case: ChunkCase, session: Session) -> None:
    """beta = 0: the state only decays, in our own kernels more exactly than the bound asks; without decay it keeps its bits."""
    given = session.inputs()
    initial, final = given["initial_state"], session.first.outputs["final_state"]
    for n, (begin, end) in enumerate(case.spans):
        total = given["g"][begin:end].double().sum(0)
        if not bool(total.any()):
            session.expect_same("final_state", final[n], initial[n], "beta = 0 and g = 0")
            continue
        expected = initial[n].double() * total.exp()[:, None, None]
        tolerance = expected.abs() * (2.0**-20 * (end - begin) + 2.0**-22 * total.abs()[:, None, None]) + 2.0**-100
        if session.subject.foreign:
            tolerance = session.first.bound_of("final_state")[n]
        session.expect_close("final_state", final[n], expected, tolerance, "beta = 0: exp(sum g) S0")


def _transposed_states(case: ChunkCase, session: Session) -> None:
    given = session.inputs()
    name = "initial_state" if case.form == "functional" else "state"
    other: Literal["kv", "vk"] = "vk" if case.state_layout == "kv" else "kv"
    turned = given | {"state_layout": other}
    if given[name] is not None:
        turned |= {name: given[name].transpose(2, 3).contiguous()}
    result = session.run(replace(case, state_layout=other, **PLAIN), turned, judged=False)
    state = result.outputs["final_state" if case.form == "functional" else "state"].transpose(2, 3)
    _agrees(case, session, result.outputs["out"], state, "states transposed")


def _other_form(case: ChunkCase, session: Session) -> None:
    """Accurate or not: both lie within their bounds of one truth."""
    other = replace(case, accurate=not case.accurate, **PLAIN)
    given, first, says = session.inputs(), session.first, f"accurate={other.accurate}"
    result = session.run(other, given | {"accurate": other.accurate}, judged=False)
    exact = {name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
             for name, value in given.items()}
    theirs = bound(replace(other, layout=case.layout), exact, first.truth)  # an expanded flag is everybody's
    state = "final_state" if case.form == "functional" else "state"
    for name, rows in (("out", slice(None)), (state, _written_states(case, given))):
        tolerance = (first.bound_of(name) + theirs[name])[rows]
        session.expect_close(name, result.outputs[name][rows], first.outputs[name][rows], tolerance, says)


def _written_states(case: ChunkCase, given: Inputs) -> Any:
    """What of the states has a bound: all, or the slots of a pool that a sequence wrote."""
    return slice(None) if case.form == "functional" else given["state_indices"][list(case.live)].long()


def _one_by_one(case: ChunkCase, session: Session) -> None:
    """Each sequence in a call of its own."""
    given = session.inputs()
    state = given.get("state")
    for n in case.live:
        begin, end = case.spans[n]
        alone = {name: given[name][begin:end] for name in TOKENS} | {"cu_seqlens": torch.tensor([0, end - begin])}
        if case.form == "functional":
            initial = given["initial_state"]
            alone["initial_state"] = None if initial is None else initial[n : n + 1]
        else:
            flags = given["has_initial_state"]
            alone |= {"state": state, "state_indices": given["state_indices"][n : n + 1]}
            alone["has_initial_state"] = None if flags is None else flags[n : n + 1]
        small = replace(case, lengths=(end - begin,), before=0, after=0, pads=(), cold=(), **PLAIN)
        result = session.run(small, given | alone, judged=False)
        bound = _bounds(session)["out"][begin:end]
        _close(session, "out", result.outputs["out"], session.first.outputs["out"][begin:end], bound, f"sequence {n} alone")
        state = result.outputs.get("state")
    if state is not None:
        keep = given["state_indices"][list(case.live)].long()
        bound = _bounds(session)["state"][keep]
        _close(session, "state", state[keep], session.first.outputs["state"][keep], bound, "sequences one by one")


def _permuted(case: ChunkCase, session: Session) -> None:
    """Sequences in another order."""
    given = session.inputs()
    order = permutation(case.seed, "order", len(case.lengths))
    lengths = tuple(case.lengths[n] for n in order)
    pieces = [torch.arange(*case.spans[n]) for n in order]
    tokens = torch.cat([torch.arange(case.before), *pieces, torch.arange(case.tokens - case.after, case.tokens)])
    moved: Inputs = {name: given[name][tokens] for name in TOKENS}
    moved["cu_seqlens"] = torch.tensor(list(accumulate(lengths, initial=case.before)))
    for name in ("initial_state", "state_indices", "has_initial_state"):
        if given.get(name) is not None:
            moved[name] = given[name][order]
    places = {name: tuple(i for i, n in enumerate(order.tolist()) if n in getattr(case, name)) for name in ("pads", "cold")}
    result = _rerun(case, session, given | moved, lengths=lengths, **places)
    bound = _bounds(session)["out"][tokens]
    _close(session, "out", result.outputs["out"], session.first.outputs["out"][tokens], bound, "sequences permuted")


def _renamed_slots(case: ChunkCase, session: Session) -> None:
    given = session.inputs()
    order = permutation(case.seed, "rename", case.slots)
    if case.pad_in_range and case.pad_slot is not None:  # the pad's name is a number, which stays
        order = order[order != case.pad_slot]
        order = torch.cat([order[: case.pad_slot], torch.tensor([case.pad_slot]), order[case.pad_slot :]])
    renamed = given["state_indices"].clone()
    usable = torch.tensor([n not in case.pads for n in range(len(case.lengths))], dtype=torch.bool)
    back = torch.empty_like(order)
    back[order] = torch.arange(case.slots)
    renamed[usable] = back[renamed[usable].long()].to(renamed.dtype)
    result = _rerun(case, session, given | {"state": given["state"][order], "state_indices": renamed})
    _agrees(case, session, result.outputs["out"], result.outputs["state"][back], "slots renamed")


def _dense(case: ChunkCase, session: Session) -> None:
    given = session.inputs()
    int32 = other_dtypes(case, ("state_indices", "cu_seqlens"), case.pad_slot)
    plain = replace(case, int32=int32, **PLAIN)
    result = session.run(plain, given, judged=False)
    state = result.outputs["final_state" if case.form == "functional" else "state"]
    _agrees(case, session, result.outputs["out"], state, "dense tensors, the other index dtype")


def _engines_forms(case: ChunkCase, session: Session) -> None:
    """As engines ask: heads in front of tokens, and no final state. With as many tokens as heads no shape tells them apart. These
    are forms of our Python face; the operator, whose contract others keep, has one."""
    if session.subject.foreign:
        return
    square = replace(case, lengths=(case.heads,), before=0, after=0)
    _heads_in_front(square, session)
    given, first = session.inputs(), session.first.outputs
    result = session.run(case, given | {"head_first": True}, judged=False)
    for name in ("out", "final_state"):
        session.expect_same(name, result.outputs[name], first[name], "heads in front of tokens")
    result = session.run(case, given | {"head_first": True, "output_final_state": False}, judged=False)
    session.expect_same("out", result.outputs["out"], first["out"], "without a final state")
    session.expect_same("final_state", torch.tensor("final_state" in result.outputs), torch.tensor(False), "none was asked for")
    _heads_in_front(replace(square, accurate=True), session)  # last: not everybody has this form


def _heads_in_front(case: ChunkCase, session: Session) -> None:
    tokens_first = session.run(case, inputs(case), judged=False).outputs["out"]
    result = session.run(case, inputs(case) | {"head_first": True}, judged=False)
    session.expect_same("out", result.outputs["out"], tokens_first, "as many tokens as heads, heads in front of tokens")


def _rerun(case: ChunkCase, session: Session, given: Inputs, **changes: Any) -> JudgedCall:
    return session.run(replace(case, **PLAIN, **changes), given, judged=False)


def _functional(case: ChunkCase) -> bool:
    return case.form == "functional"


RELATIONS = {
    "split": Relation(
        _split,
        "a sequence in two calls equals it in one",
        lambda case: _functional(case) and len(case.lengths) == 1 and case.lengths[0] > 1 and case.state == "float32",
    ),
    "steps": Relation(
        _as_steps,
        "a sequence equals its tokens as decode steps",
        lambda case: _functional(case) and case.state != "bfloat16" and case.beta != "strong" and sum(case.lengths) < 70,
    ),
    "pool": Relation(_as_pool, "the functional form equals the pool form", _functional),
    "decay": Relation(
        _only_decay,
        "with beta = 0 the state only decays",
        lambda case: _functional(case) and case.beta == "zero" and case.state == "float32",
    ),
    "transpose": Relation(_transposed_states, "kv and vk states agree"),
    "accurate": Relation(_other_form, "the accurate form and the fast one have one truth"),
    "alone": Relation(_one_by_one, "a batch equals its sequences alone"),
    "permute": Relation(_permuted, "the order of the sequences does not matter"),
    "rename": Relation(_renamed_slots, "the names of slots do not matter", lambda case: case.form == "pool"),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
    "engines": Relation(_engines_forms, "head_first and output_final_state change the form alone", _functional),
}
