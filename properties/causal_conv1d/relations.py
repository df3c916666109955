"""What must hold of causal_conv1d beyond equality with its reference."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.layout import EXPANDED
from kernelpair.call.values import any_bits, permutation
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.causal_conv1d.batch import as_varlen, pick, requests, varlen
from properties.shared.packed_weights import SAME_WEIGHT, kept
from properties.shared.pads import other_dtypes
from reference.causal_conv1d import causal_conv1d_pack_weight

NAN = float("nan")


def _plain(case: Any) -> Any:
    return replace(case, layout={})


def _tolerance(session: Session) -> Tensor:
    """Both sides are within one bound of the truth."""
    first = session.first
    found = first.bound.get("out")
    return 2 * found if isinstance(found, Tensor) else torch.zeros_like(first.truth["out"])


def _same_requests(session: Session, given: Inputs, again: JudgedCall, other: Inputs, rows: list[int], says: str) -> None:
    """Request rows[i] of the first call gives what request i of another call gives."""
    before, after, tolerance = requests(given), requests(other), _tolerance(session)
    for i, row in enumerate(rows):
        got, first = after[i].of(again.outputs["out"]), before[row].of(session.first.outputs["out"])
        allowed = before[row].of(tolerance)
        if got.dim() == first.dim():
            session.expect_close("out", got, first, allowed, f"{says}, request {row}")


def _same_state(session: Session, again: JudgedCall, rows: list[int], says: str, slots: Tensor | None = None) -> None:
    """The slots of these requests hold the same bits; slots[i] is where slot i went."""
    if "conv_states" not in session.first.outputs:
        return
    for request in requests(session.inputs()):
        if request.live and request.row in rows:
            moved = request.slot if slots is None else int(slots[request.slot])
            got, first = again.outputs["conv_states"][moved], session.first.outputs["conv_states"][request.slot]
            session.expect_same("conv_states", got, first, says)


def _all_rows(given: Inputs) -> list[int]:
    return [request.row for request in requests(given)]


def _permuted(case: Any, session: Session) -> None:
    given = session.inputs()
    rows = permutation(case.seed, "order", len(_all_rows(given))).tolist()
    other = pick(given, rows)
    again = session.run(_plain(case), other, judged=False)
    _same_requests(session, given, again, other, rows, "requests in another order")
    _same_state(session, again, rows, "requests in another order")


def _alone(case: Any, session: Session) -> None:
    given = session.inputs()
    rows = [case.seed % len(_all_rows(given))]
    other = pick(given, rows)
    again = session.run(_plain(case), other, judged=False)
    _same_requests(session, given, again, other, rows, "a request alone")
    _same_state(session, again, rows, "a request alone")


def _renamed(case: Any, session: Session) -> None:
    given = session.inputs()
    states = given["conv_states"]
    to = permutation(case.seed, "rename", len(states))
    moved = torch.empty_like(states)
    moved[to] = states
    pad = {} if given["pad_slot"] is None else {"pad_slot": -7}
    slots = [int(to[r.slot]) if r.live else pad.get("pad_slot", -1) for r in requests(given)]
    other = given | {"conv_states": moved, "cache_indices": torch.tensor(slots, dtype=torch.int64)} | pad
    again = session.run(_plain(case), other, judged=False)
    rows = _all_rows(given)
    _same_requests(session, given, again, other, rows, "slots renamed")
    _same_state(session, again, rows, "slots renamed", to)


def _other_layout(case: Any, session: Session) -> None:
    """Dense or turned, whichever the case is not, of the state and of x."""
    given = session.inputs()
    layout = {name: "turned" for name in ("x", "conv_states") if case.layout.get(name, "dense") == "dense"}
    int32 = other_dtypes(case, case_indices(given), given["pad_slot"])
    again = session.run(replace(case, layout=layout, int32=int32), given, judged=False)
    rows = _all_rows(given)
    _same_requests(session, given, again, given, rows, "another layout and index dtype")
    _same_state(session, again, rows, "another layout and index dtype")


def _kept(case: Any, session: Session) -> None:
    given = session.inputs()
    again = session.run(_plain(case), given | {"kept": True}, judged=False)
    rows = _all_rows(given)
    _same_requests(session, given, again, given, rows, SAME_WEIGHT)
    _same_state(session, again, rows, SAME_WEIGHT)


def case_indices(given: Inputs) -> tuple[str, ...]:
    """The index arguments that a call has."""
    return tuple(name for name in ("query_start_loc", "cache_indices") if given.get(name) is not None)


def _nobody_is_a_pad(case: Any, session: Session) -> None:
    """Without indices no request has a slot that the pad could name."""
    given, says = session.inputs(), "a pad_slot without indices"
    rows = _all_rows(given)
    again = session.run(_plain(case), given | {"pad_slot": case.seed % len(rows)}, judged=False)
    _same_requests(session, given, again, given, rows, says)
    _same_state(session, again, rows, says)


def _batched_is_varlen(case: Any, session: Session) -> None:
    given = session.inputs()
    other = as_varlen(given)
    again = session.run(replace(_plain(case), form="varlen"), other, judged=False)
    _same_requests(session, given, again, other, _all_rows(given), "the batch end to end")
    _same_state(session, again, _all_rows(given), "the batch end to end")


def _in_two_calls(case: Any, session: Session, cuts: list[int], last: str, says: str) -> None:
    """The first cuts[b] tokens of request b, then the rest from the state they leave."""
    given = session.inputs()
    batch = requests(given)
    tokens = [request.of(given["x"]) for request in batch]
    slots = {"cache_indices": torch.tensor([request.slot for request in batch], dtype=torch.int64)}
    head = given | slots | varlen(given, [part[:, :cut] for part, cut in zip(tokens, cuts)])
    first = session.run(replace(_plain(case), form="varlen"), head, judged=False)
    states = first.outputs["conv_states"]
    initial = given["has_initial_state"]
    carried = [cut > 0 or (initial is not None and bool(initial[b])) for b, cut in enumerate(cuts)]
    if last == "varlen":
        tail = head | varlen(given, [part[:, cut:] for part, cut in zip(tokens, cuts)])
        tail |= {"conv_states": states, "has_initial_state": torch.tensor(carried)}
        rows = _all_rows(given)
    else:
        rows = [request.row for request in batch if request.end > request.start]
        for row in rows:
            if batch[row].live and not carried[row]:
                states[batch[row].slot] = 0
        tail = {name: value for name, value in given.items() if name not in ("has_initial_state", "query_start_loc")}
        x = torch.stack([tokens[row][:, -1] for row in rows])
        tail |= {"form": "update", "x": x, "conv_states": states, "cache_indices": slots["cache_indices"][rows]}
    second = session.run(replace(_plain(case), form=last), tail, judged=False)
    tolerance, whole = _tolerance(session), session.first.outputs["out"]
    for i, row in enumerate(rows):
        got = requests(tail)[i].of(second.outputs["out"]).reshape(given["dim"], -1)
        joined = torch.cat([requests(head)[row].of(first.outputs["out"]), got], dim=1)
        session.expect_close("out", joined, batch[row].of(whole), batch[row].of(tolerance), f"{says}, request {row}")
    _same_state(session, second, rows, says)


def _split(case: Any, session: Session) -> None:
    cuts = [(case.seed + b) % (r.end - r.start + 1) for b, r in enumerate(requests(session.inputs()))]
    _in_two_calls(case, session, cuts, "varlen", "in two pieces")


def _last_token_by_update(case: Any, session: Session) -> None:
    cuts = [max(r.end - r.start - 1, 0) for r in requests(session.inputs())]
    if any(r.end > r.start for r in requests(session.inputs())):
        _in_two_calls(case, session, cuts, "update", "the last token by update")


def called_with_any_bits(case: Any, session: Session) -> tuple[Inputs, JudgedCall]:
    """The call with tokens and histories of any bits, NaN and subnormals among them: what it is given, and what it gives."""
    given = session.inputs()
    for name in ("x", "conv_states"):
        given[name] = any_bits(case.seed, f"any {name}", given[name].shape, given[name].dtype)
    layout = {name: kind for name, kind in case.layout.items() if name in ("x", "conv_states") and kind != EXPANDED}
    return given, session.run(replace(case, layout=layout), given, judged=False)


def _any_bits(case: Any, session: Session) -> None:
    given, again = called_with_any_bits(case, session)
    initial, columns = given.get("has_initial_state"), given["conv_states"].shape[2]
    for request in requests(given):
        if request.live:
            history = given["conv_states"][request.slot]
            if case.form != "update" and (initial is None or not initial[request.row]):
                history = torch.zeros_like(history)
            joined = torch.cat([history, request.of(given["x"]).reshape(case.dim, -1)], dim=1)
            got = again.outputs["conv_states"][request.slot]
            session.expect_same("conv_states", got, joined[:, -columns:], "columns of any bits")
            seen = torch.isnan(joined[:, columns - (case.width - 1) :]).unfold(1, case.width, 1).any(dim=2)
            out = request.of(again.outputs["out"]).reshape(case.dim, -1)
            session.expect(bool(torch.isnan(out[seen]).all()), "out", "a result that sees NaN is NaN")


def _wider(case: Any, session: Session) -> None:
    """Three columns more in front of every slot: nothing else changes, and they hold what the state held before."""
    given, more = session.inputs(), 3
    states = given["conv_states"]
    front = torch.full((*states.shape[:2], more), 0.5, dtype=states.dtype)
    wide = torch.cat([front, states], dim=2)
    again = session.run_moved(replace(_plain(case), wider=case.wider + more), given | {"conv_states": wide})
    session.expect_moved("out", again.outputs["out"], session.first.outputs["out"], "wider states")
    got = again.outputs["conv_states"]
    session.expect_same("conv_states", got[:, :, more:], session.first.outputs["conv_states"], "wider states")
    for request in requests(given):
        length, initial = request.end - request.start, given.get("has_initial_state")
        if request.live and length <= more and (case.form == "update" or (initial is not None and initial[request.row])):
            before, columns = wide[request.slot], wide.shape[2]
            says = "wider states: without the last tokens the state before"
            session.expect_same("conv_states", got[request.slot][:, : columns - length], before[:, length:], says)


def _poisoned_neighbour(case: Any, session: Session) -> None:
    """One request's tokens and state become NaN: the others do not notice."""
    given = session.inputs()
    live = [request for request in requests(given) if request.live]
    if len(live) < 2 or case.layout.get("x") == "expanded":
        return
    victim = live[case.seed % len(live)]
    victim.of(given["x"]).fill_(NAN)
    if given["conv_states"] is not None:
        given["conv_states"][victim.slot] = NAN
    again = session.run(_plain(case), given, judged=False)
    rows = [request.row for request in requests(given) if request.row != victim.row]
    whole = {request.row: request for request in requests(given)}
    tolerance = _tolerance(session)
    for row in rows:
        got, first = whole[row].of(again.outputs["out"]), whole[row].of(session.first.outputs["out"])
        session.expect_close("out", got, first, whole[row].of(tolerance), "a neighbour of NaN")
    _same_state(session, again, rows, "a neighbour of NaN")


def _poisoned_channel(case: Any, session: Session) -> None:
    """One channel of x becomes NaN: so do its results, and the others do not notice."""
    given = session.inputs()
    channel = case.seed % case.dim
    axis = 1 if case.form != "varlen" else 0
    given["x"].select(axis, channel).fill_(NAN)
    again = session.run(_plain(case), given, judged=False)
    others = [c for c in range(case.dim) if c != channel]
    got, first, index = again.outputs["out"], session.first.outputs["out"], torch.tensor(others)
    spoiled = [request.of(got).reshape(case.dim, -1)[channel] for request in requests(given) if request.live]
    session.expect(all(bool(part.isnan().all()) for part in spoiled), "out", "NaN stays NaN")
    tolerance = _tolerance(session).index_select(axis, index)
    session.expect_close("out", got.index_select(axis, index), first.index_select(axis, index), tolerance, "beside a NaN channel")


OVERFLOWS = {"float16": (2.0, 65504.0), "bfloat16": (131 / 128, 250 / 128 * 2.0**127), "float32": (2.0, 2.0**127)}
"""A weight and a token whose product the dtype does not hold, but float32 where that is wider."""


def _overflow(case: Any, session: Session) -> None:
    """A result beyond the range of the dtype is infinite (of somebody else's kernel beyond float32 anything), and no other one
    notices. The newest tap is above 1, the others are 0."""
    given = session.inputs()
    request = [request for request in requests(given) if request.live][-1]
    tokens = request.of(given["x"])  # [dim, n], or of an update [dim]
    channel, token = case.seed % case.dim, case.seed // 3 % (request.end - request.start)
    weight = torch.zeros(case.dim, case.width, dtype=tokens.dtype)
    weight[:, -1], large = OVERFLOWS[case.dtype]
    given["packed_weight"] = causal_conv1d_pack_weight(weight)
    first = session.run(_plain(case), given, judged=False).outputs["out"]
    sign = 1 if case.silu or case.seed % 2 else -1
    tokens.view(case.dim, -1)[channel, token] = sign * large
    got = session.run(_plain(case), given, judged=False).outputs["out"]
    reached = torch.zeros_like(got, dtype=torch.bool)
    request.of(reached).view(case.dim, -1)[channel, token] = True
    open_sum = case.dtype == "float32" and session.subject.foreign
    infinite = open_sum or bool((got[reached] == sign * torch.inf).all())
    session.expect(infinite, "out", f"{sign * large} times {OVERFLOWS[case.dtype][0]} is {got[reached]}")
    others, before = got[~reached] + 0.0, first[~reached] + 0.0  # 0 times a number of the other sign is the other zero
    session.expect_same("out", others, before, "beside a result beyond the range")


def _impulse(case: Any, session: Session) -> None:
    """A single 1 reads back the weight, newest tap first."""
    given = session.inputs()
    at, length = case.seed % 9, case.seed % 9 + case.width
    x = torch.zeros(case.dim, length, dtype=given["x"].dtype)
    x[:, at] = 1
    weight = given["packed_weight"].transpose(1, 2).reshape(-1, given["packed_weight"].shape[1] * 2)[: case.dim, : case.width]
    none = {"bias": None, "conv_states": None, "cache_indices": None, "has_initial_state": None, "pad_slot": None}
    plain = replace(_plain(case), form="varlen", silu=False)
    again = session.run(plain, given | varlen(given, [x]) | none | {"silu_activation": False}, judged=False)
    session.expect_same("out", again.outputs["out"][:, at:] + 0.0, weight.flip(1) + 0.0, "the impulse response")


def _has_requests(case: Any) -> bool:
    return case.form != "pack" and bool(case.lengths)


def _has_tokens(case: Any) -> bool:
    return _has_requests(case) and any(n and b not in case.pads for b, n in enumerate(case.lengths))


def _is_forward(case: Any) -> bool:
    return case.form in ("batched", "varlen") and bool(case.lengths)


RELATIONS = {
    "permute": Relation(_permuted, "permuting the requests permutes the results", _has_requests),
    "alone": Relation(_alone, "a request gives the same alone and in company", _has_requests),
    "rename": Relation(_renamed, "which slot is whose does not matter", lambda case: _has_requests(case) and case.states),
    "no_pads": Relation(
        _nobody_is_a_pad, "without indices a pad_slot says nothing",
        lambda case: _has_requests(case) and case.states and not case.indexed,
    ),
    "layout": Relation(_other_layout, "SD = DS, channels or tokens dense, int32 or int64: the same", _has_requests),
    "batched_varlen": Relation(
        _batched_is_varlen, "a batch equals its sequences end to end", lambda c: c.form == "batched" and bool(c.lengths)
    ),
    "split": Relation(_split, "a sequence equals its two pieces, state carried over", lambda c: _is_forward(c) and c.states),
    "step": Relation(_last_token_by_update, "the last token may come by update", lambda c: _is_forward(c) and c.states),
    "wider": Relation(
        _wider, "a wider state gives the same, and keeps the columns before", lambda c: _has_requests(c) and c.states
    ),
    "any_bits": Relation(
        _any_bits, "a state holds tokens bit for bit, whatever the bits", lambda c: _has_requests(c) and c.states
    ),
    "isolation": Relation(_poisoned_neighbour, "NaN of one request stays there", _has_requests),
    "channels": Relation(_poisoned_channel, "NaN of one channel stays there", lambda c: _has_requests(c) and c.dim > 1),
    "overflow": Relation(
        _overflow, "a result beyond the dtype's range is infinite",
        lambda c: _has_tokens(c) and c.layout.get("x") != EXPANDED,
    ),
    "tensors": kept(_kept, _has_requests),
    "impulse": Relation(_impulse, "an impulse reads back the flipped weight, bit for bit", _is_forward),
}
