"""rotary_embedding: what holds between calls."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Inputs, Outputs, Relation
from kernelpair.trial.session import Session
from properties.rotary_embedding.cases import LARGEST_HALF, RotaryCase
from properties.shared.attention_bound import UNIT_ROUNDOFF
from reference.rotary_embedding import rotary_embedding

HEADS = ("query", "key")


def _plain(case: RotaryCase) -> RotaryCase:
    return replace(case, layout={})


def _each(given: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs with heads changed, as far as they are there."""
    return given | {name: change(given[name]) for name in HEADS if given[name] is not None}


def _same(session: Session, outputs: Outputs, change: Callable[[Tensor], Tensor], says: str) -> None:
    """The outputs of another call are those of the first one, changed, bit for bit."""
    for name, value in session.first.outputs.items():
        session.expect_moved(name, outputs[name], change(value), says)


def _back(case: RotaryCase, session: Session) -> None:
    """Rotated back: each rotation is within its bound, and the second one keeps or doubles at most what the first was off."""
    given, first = session.inputs(), session.first
    cosines, sines = given["cos_sin_cache"].chunk(2, dim=-1)
    again = session.run(_plain(case), given | dict(first.outputs) | {"cos_sin_cache": torch.cat([cosines, -sines], dim=-1)})
    for name, value in again.outputs.items():
        off = first.bound_of(name)
        pairs = 2 * off.amax(-1, keepdim=True) + 2.0**-21 * 2 * given[name].double().abs().amax(-1, keepdim=True)
        written = torch.arange(case.width) < case.rotary
        tolerance = torch.where(written, again.bound_of(name) + pairs, 0.0)
        session.expect_close(name, value.double(), given[name], tolerance, "rotated there and back")


def _pairings(case: RotaryCase, session: Session) -> None:
    """The other pairing, of heads whose elements are put into its order."""
    given, half = session.inputs(), case.rotary // 2
    even_odd = torch.arange(case.width)
    even_odd[: case.rotary] = torch.arange(case.rotary).view(half, 2).T.flatten()  # 0 2 4 .. 1 3 5 ..
    order = even_odd.argsort() if case.is_neox else even_odd
    moved = _each(given, lambda heads: heads[..., order]) | {"is_neox": not case.is_neox}
    again = session.run_moved(replace(_plain(case), is_neox=not case.is_neox), moved)
    _same(session, again.outputs, lambda heads: heads[..., order], "the other pairing, of heads in its order")


def _equal_axes(case: RotaryCase, session: Session) -> None:
    given, pairs = session.inputs(), case.rotary // 2
    section = [pairs // 2, pairs - pairs // 2, 0]
    alike = given | {"positions": given["positions"].expand(3, -1), "mrope_section": section}
    again = session.run_moved(_plain(case), alike)
    _same(session, again.outputs, lambda heads: heads, "three axes with equal positions")


def _heads_alone(case: RotaryCase, session: Session) -> None:
    head = case.seed % case.heads
    alone = session.inputs()
    alone |= {"query": alone["query"][:, head : head + 1], "key": None}
    again = session.run_moved(_plain(case), alone)
    expected = session.first.outputs["query"][:, head : head + 1]
    session.expect_moved("query", again.outputs["query"], expected, "a head alone")


def _tokens(case: RotaryCase, session: Session) -> None:
    """Some of the tokens, in another order, in heads that lie apart."""
    order = permutation(case.seed, "tokens", case.tokens)[: case.seed % (case.tokens + 1)]
    given = session.inputs()
    some = _each(given, lambda heads: heads[order]) | {"positions": given["positions"][..., order]}
    again = session.run_moved(_plain(case), some)
    _same(session, again.outputs, lambda heads: heads[order], "some of the tokens, in another order")


def _apart(case: RotaryCase, session: Session) -> None:
    layout = {"query": "padded", "key": "sliced", "positions": "strided", "cos_sin_cache": "padded"}
    again = session.run_moved(replace(case, layout=layout), session.inputs())
    _same(session, again.outputs, lambda heads: heads, "heads, tokens and rows of the table apart in memory")


def _wide(case: RotaryCase, session: Session) -> None:
    given = session.inputs()
    again = session.run_moved(_plain(case), given | {"cos_sin_cache": given["cos_sin_cache"].float()})
    _same(session, again.outputs, lambda heads: heads, "the table in float32")


def _spoiled(case: RotaryCase, session: Session) -> None:
    """An infinite element is in its pair and nowhere else."""
    given, half = session.inputs(), case.rotary // 2
    pair = case.seed % half
    reached = torch.zeros(case.tokens, case.heads, case.width, dtype=torch.bool)
    one, other = (pair, half + pair) if case.is_neox else (2 * pair, 2 * pair + 1)
    token, head = case.seed % case.tokens, case.seed % case.heads
    reached[token, head, [one, other]] = True
    query = given["query"].clone()
    query[token, head, one] = torch.inf
    first = session.run(_plain(case), given, judged=False).outputs if case.layout else session.first.outputs
    out = session.run(_plain(case), given | {"query": query}, judged=False).outputs
    session.expect_same("query", out["query"][~reached], first["query"][~reached], "an infinite element")
    pair_of_it = out["query"][token, head, [one, other]]
    session.expect(not bool(pair_of_it.isfinite().any()), "query", "an infinite element did not spoil its pair")


def _beyond(case: RotaryCase, session: Session) -> None:
    """Of pairs of the largest numbers results are beyond the dtype: they are infinities of their signs. Where cosines and sines
    are beyond 1 a product is, so one of the pair is 0, but of float16, whose products float32 holds: there they reach 2,
    and the other result may fit though its products do not. Half of all cases become such ones."""
    given, half = session.inputs(), case.rotary // 2
    if case.seed // 5 % 2:
        case = replace(case, dtype="float16", wide=True)
        given = _each(given, lambda heads: heads.clamp(-LARGEST_HALF, LARGEST_HALF).half())
        given |= {"cos_sin_cache": given["cos_sin_cache"].float()}
    name = "key" if case.kv_heads and (case.heads == 0 or case.seed % 2) else "query"
    heads = given[name].clone()
    pairs, token, head = torch.arange(half), case.seed % case.tokens, case.seed % heads.shape[1]
    one, two = (pairs, half + pairs) if case.is_neox else (2 * pairs, 2 * pairs + 1)
    at, most = torch.cat([one, two]), torch.finfo(heads.dtype).max
    halves = heads.dtype == torch.float16
    if halves:
        given = given | {"cos_sin_cache": given["cos_sin_cache"] * (2 / case.factor)}
    other = 0.0 if case.factor > 1 and not halves else -most if case.seed % 3 else most
    heads[token, head, one], heads[token, head, two] = most, other
    truth = given | {"query": heads.double()[:, :0], "key": None, "cos_sin_cache": given["cos_sin_cache"].double()}
    truth[name] = heads.double()
    rotary_embedding(**truth)
    expected, got = truth[name][token, head, at], session.run(_plain(case), given | {name: heads}, judged=False)
    beyond = expected.abs() > most * (1 + 2.0**-6)
    out = got.outputs[name][token, head, at].double()
    session.expect_same(name, out[beyond], expected[beyond].sign() * torch.inf, "a result beyond the dtype")
    fits = expected.abs() < most * (1 - 2.0**-6)
    if halves:  # u of the result, and 2^-22 of two products of the largest number by at most 2
        tolerance = UNIT_ROUNDOFF[heads.dtype] * expected[fits].abs() + 2.0**-22 * 4 * most
        session.expect_close(name, out[fits], expected[fits], tolerance, "a result that fits where its products need not")


def _some(case: RotaryCase) -> bool:
    return case.tokens * case.heads > 0


RELATIONS = {
    "back": Relation(
        _back, "rotating by the opposite angles restores the heads",
        lambda case: not case.exact and case.factor == 1 and (case.wide or case.dtype == "float32"),
    ),
    "pairings": Relation(_pairings, "both pairings are one rotation, of elements in another order, bit for bit"),
    "equal_axes": Relation(_equal_axes, "three axes with equal positions are one, bit for bit", lambda case: not case.section),
    "heads": Relation(_heads_alone, "a head does not depend on the others", _some),
    "tokens": Relation(_tokens, "a token does not depend on the others, bit for bit"),
    "apart": Relation(_apart, "strides do not matter, bit for bit"),
    "wide": Relation(
        _wide, "a table of 16 bits is the same numbers in float32", lambda case: case.dtype != "float32" and not case.wide
    ),
    "beyond": Relation(
        _beyond, "a result beyond the dtype is an infinity",
        lambda case: case.tokens * (case.heads + (case.kv_heads or 0)) > 0 and not case.exact,
        opens=True,
    ),
    "spoiled": Relation(
        _spoiled, "an infinite element spoils its pair and nothing else", lambda case: _some(case) and not case.exact
    ),
}
